"""Compare the translations on an exported page, in headless Chromium, with those of the command line.

    python -m tools.translation_page multi30k-de-en multi30k/test_2016_flickr.de --lines 200

The first lines of a file are translated by the page, in float32 and int8, and by `stairwell translate` with the same
`--weights` and the same beam. Prints how many translations differ, and how many of the int8 page differ from float32.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from html import unescape
from pathlib import Path

from bench.browser import FLAGS, browser
from stairwell.decode.weights import Weights
from stairwell.errors import UserError
from stairwell.export import export_translation_html, translators_of_runs
from stairwell.runs.pair_runs import open_translator

BEAMS = (1, 5)
WEIGHTS: tuple[Weights, ...] = ("float32", "int8")
SCRIPT = """<script>
const results = BEAMS.map((beam) => LINES.map((line) => {
  const { hypotheses } = finish(page.translator.translate(line, { beam }));
  return hypotheses.length ? hypotheses[0].text : "";
}));
document.body.replaceChildren();
html(document.body, "pre", { id: "result" }, JSON.stringify(results));
</script></body>"""


def translate_in_page(run: str, lines: Sequence[str], weights: Weights) -> dict[int, list[str]]:
    """Return the translations of the lines on the page of a run, by beam size."""
    with tempfile.TemporaryDirectory(prefix="stairwell-page-") as folder:
        page = Path(folder) / "page.html"
        export_translation_html(translators_of_runs([run]), page, weights=weights)
        escaped = json.dumps(lines).replace("<", "\\u003c")
        script = SCRIPT.replace("BEAMS", json.dumps(BEAMS)).replace("LINES", escaped)
        page.write_text(page.read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
        command = [browser(), *FLAGS, f"--user-data-dir={folder}/profile", "--dump-dom", page.as_uri()]
        dom = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result = re.search(r'<pre id="result">(.*?)</pre>', dom, re.DOTALL)
    if result is None:
        raise UserError("the browser did not run the page's script")
    return dict(zip(BEAMS, json.loads(unescape(result[1])), strict=True))


def translate(run: str, lines: Sequence[str], weights: Weights, beam: int) -> list[str]:
    """Return the translations of the lines by the command line."""
    translator = open_translator(run, None, "cpu", weights=weights, beam=beam)
    return [best[0].text for best in translator.translate(lines)]


def count_differences(first: Sequence[str], second: Sequence[str]) -> int:
    return sum(one != other for one, other in zip(first, second, strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("file", type=Path)
    parser.add_argument("--lines", type=int, default=200)
    given = parser.parse_args(arguments)
    lines = given.file.read_text(encoding="utf-8").split("\n")[: given.lines]
    pages = {weights: translate_in_page(given.run, lines, weights) for weights in WEIGHTS}
    for weights in WEIGHTS:
        for beam in BEAMS:
            differences = count_differences(pages[weights][beam], translate(given.run, lines, weights, beam))
            print(f"{weights}, beam {beam}: {differences} of {len(lines)} differ from the command line in {weights}")
    for beam in BEAMS:
        differences = count_differences(pages["int8"][beam], pages["float32"][beam])
        print(f"beam {beam}: {differences} of {len(lines)} differ between int8 and float32")


if __name__ == "__main__":
    main()
