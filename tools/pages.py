"""Pictures of exported pages for docs/.

python -m tools.pages PAGE.html PICTURE.png [--dark] [--size 900x1000] [--script JS]

The page is opened in headless Chromium as a file; the script uses it as a person would, `page` being the page's own
object. The picture is written with few colors, so that it stays small.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from stairwell.errors import UserError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--hide-scrollbars", "--virtual-time-budget=20000",
)  # fmt: skip
DARK = "--blink-settings=preferredColorScheme=0"
COLORS = 96


def draw(page: Path, picture: Path, script: str, size: str, dark: bool) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise UserError(f"no browser is installed to open a page in: {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory(prefix="stairwell-pages-") as folder:
        copy, raw = Path(folder) / "page.html", Path(folder) / "page.png"
        use = f"<script>(async () => {{ {script} }})();</script></body>"
        copy.write_text(page.read_text(encoding="utf-8").replace("</body>", use), encoding="utf-8")
        command = [browser, *FLAGS, *([DARK] if dark else []), f"--user-data-dir={folder}/profile"]
        command += [f"--window-size={size.replace('x', ',')}", f"--screenshot={raw}", copy.as_uri()]
        subprocess.run(command, capture_output=True, timeout=120, check=True)
        Image.open(raw).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(picture, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--size", default="900x1000")
    parser.add_argument("--script", default="")
    given = parser.parse_args()
    draw(given.page, given.picture, given.script, given.size, given.dark)
    print(f"{given.picture}: {given.picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
