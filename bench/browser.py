"""Exported pages: size in bytes, and tokens per second of their engine in a browser.

A page is opened from a file in headless Chromium. Its engine reads tokens for two seconds, with and without recording
attention. The models are untrained, because the speed does not depend on the parameters.
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
from stairwell.export import PageModel, export_html
from stairwell.runs.presets import preset

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
CASES = ("random-walk/feedback", "random-walk/transformer-xl", "lm/feedback", "lm/transformer-xl")
SECONDS = 2
TIMING = """<script>
const rate = (recordAttention) => {
  const { engine } = models[0];
  for (let t = 0; t < 300; t++) engine.step(t % 3, recordAttention);
  const started = performance.now();
  let tokens = 0;
  for (; performance.now() - started < 1000 * SECONDS; tokens++) engine.step(tokens % 3, recordAttention);
  return (1000 * tokens) / (performance.now() - started);
};
document.body.replaceChildren();
const result = { plain: rate(false), attention: rate(true), agent: navigator.userAgent };
html(document.body, "pre", { id: "result" }, JSON.stringify(result));
</script></body>"""


def browser() -> str:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise UserError(f"no browser is installed; install one of: {', '.join(BROWSERS)}")
    return path


def measure_case(case: str, folder: Path) -> list[dict[str, Any]]:
    config = preset(case)
    torch.manual_seed(0)
    task = config.make_tasks()[0]
    model: Any = config.make_model(task, torch.device("cpu"), "auto")
    path = folder / "page.html"
    size = export_html([PageModel(case, model.eval(), task)], path)
    timing = TIMING.replace("SECONDS", str(SECONDS))
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", timing), encoding="utf-8")
    command = [browser(), *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    result = re.search(r'<pre id="result">(.*?)</pre>', dom, re.DOTALL)
    if result is None:
        raise UserError("the browser did not run the page's script")
    rates = json.loads(unescape(result[1]))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    facts = {"case": case, "what": "page", "bytes": size, "parameters": parameters}
    version = re.search(r"Chrome/([\d.]+)", rates["agent"])
    return [
        {
            **facts,
            "tokens_per_second": round(rates["plain"]),
            "with_attention": round(rates["attention"]),
            "browser": f"Chromium {version[1]}" if version else rates["agent"],
        }
    ]


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="stairwell-browser-") as folder:
        return [record for case in cases for record in measure_case(case, Path(folder))]
