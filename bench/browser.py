"""Exported pages: how many bytes they have, and how many tokens a second their engine reads in a browser.

A page is opened in headless Chromium, as a file, and its own engine reads tokens for two seconds, with what the page
looks at (attention) and without. Speed does not depend on what a model has learned, so these have learned nothing.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import torch

from stairwell.errors import UserError
from stairwell.export import Shown, export_html
from stairwell.runs.presets import preset

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
CASES = ("random-walk/feedback", "random-walk/transformer-xl", "lm/feedback", "lm/transformer-xl")
SECONDS = 2
TIMING = """<script>
const rate = (look) => {
  const { engine } = models[0];
  for (let t = 0; t < 300; t++) engine.step(t % 3, look);
  const began = performance.now();
  let tokens = 0;
  for (; performance.now() - began < 1000 * SECONDS; tokens++) engine.step(tokens % 3, look);
  return (1000 * tokens) / (performance.now() - began);
};
document.body.replaceChildren();
const found = { plain: rate(false), looking: rate(true), agent: navigator.userAgent };
html(document.body, "pre", { id: "result" }, JSON.stringify(found));
</script></body>"""


def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise UserError(f"no browser is installed to open a page in: {', '.join(BROWSERS)}")
    return found


def measure_case(case: str, folder: Path) -> list[dict[str, Any]]:
    experiment = preset(case)
    torch.manual_seed(0)
    task = experiment.make_tasks()[0]
    model: Any = experiment.make_model(task, torch.device("cpu"), "auto")
    path = folder / "page.html"
    size = export_html([Shown(case, model.eval(), task)], path)
    timing = TIMING.replace("SECONDS", str(SECONDS))
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", timing), encoding="utf-8")
    command = [browser(), *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'<pre id="result">(.*?)</pre>', shown, re.DOTALL)
    if found is None:
        raise UserError("the browser has not run the page's script")
    rates = json.loads(unescape(found[1]))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    facts = {"case": case, "what": "page", "bytes": size, "parameters": parameters}
    version = re.search(r"Chrome/([\d.]+)", rates["agent"])
    return [
        {
            **facts,
            "tokens_per_second": round(rates["plain"]),
            "with_attention": round(rates["looking"]),
            "browser": f"Chromium {version[1]}" if version else rates["agent"],
        }
    ]


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="stairwell-browser-") as folder:
        return [record for case in cases for record in measure_case(case, Path(folder))]
