"""Export the live pages and C files of the gallery when the site is built, with the commands that gallery.md shows.

A comment `<!-- live: corridor.html -->` of that page becomes a link to the file. ONNX and torch.export graphs are not
exported here, because they take longer than the rest of the site.
"""

import contextlib
import io
import logging
import re
import shlex
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from stairwell.cli import main as _commands  # noqa: F401  registers every command
from stairwell.cli.app import app
from stairwell.errors import UserError

PAGE, FOLDER = "gallery.md", "gallery"
LIVE = re.compile(r"<!-- live: (.+?) -->")
COMMAND = re.compile(r"^stairwell (export .* --(?:html|c) .*)$", re.MULTILINE)
log = logging.getLogger("mkdocs.hooks.gallery")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    text = Path(config.docs_dir, PAGE).read_text(encoding="utf-8")
    for name, content in exported(text).items():
        files.append(File.generated(config, f"{FOLDER}/{name}", content=content))
    return files


@cache
def exported(text: str) -> dict[str, bytes]:
    """Return the files that the commands of the page write, by name. An environment that is not installed is left
    out."""
    command: Any = typer.main.get_command(app)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for line in COMMAND.findall(text):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    command.main(shlex.split(line, comments=True), prog_name="stairwell", standalone_mode=False)
            except UserError as error:
                log.info("gallery: stairwell %s: %s", line, error)
        return {path.name: path.read_bytes() for path in sorted(Path().iterdir())}


def on_page_markdown(markdown: str, page: Any, files: Files, **_: object) -> str:
    def link(name: str) -> str:
        if files.get_file_from_path(f"{FOLDER}/{name}") is None:
            return ""
        return f"[{name}]({FOLDER}/{name}){{target=_blank}}" if name.endswith(".html") else f"[{name}]({FOLDER}/{name})"

    if page.file.src_uri != PAGE:
        return markdown
    return LIVE.sub(lambda found: "Open: " + ", ".join(filter(None, map(link, found[1].split()))), markdown)
