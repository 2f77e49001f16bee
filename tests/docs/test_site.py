"""The documentation site builds offline, without a warning, and none of its links is broken."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """The anchors and the links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "__codelineno"}
        self.links: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.links.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def test_no_link_is_broken(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 20
    broken = [
        f"{path.relative_to(site)}: {link}"
        for path, page in pages.items()
        for link in sorted(page.links)
        if not resolves(link, path, pages)
    ]
    assert not broken, "\n".join(broken)


def resolves(link: str, path: Path, pages: dict[Path, Page]) -> bool:
    """Return whether a link leads to a file of the site and an anchor of it; links to elsewhere need a host."""
    parts = urlsplit(link)
    if parts.scheme:
        is_web = parts.scheme in ("http", "https") and re.fullmatch(r"[\w.-]+\.[a-z]{2,}(:\d+)?", parts.netloc)
        return bool(is_web) or parts.scheme in ("mailto", "data")
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if target not in pages:
        return target.is_file()
    return unquote(parts.fragment) in pages[target].anchors


def test_the_gallery_opens_exports_of_every_included_model(site: Path) -> None:
    from stairwell import checkpoints

    text = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    sizes = dict(re.findall(r"([\w-]+\.\w+) ([\d,]+) bytes", text))
    page = Page(site / "gallery.html")
    live = [name for names in re.findall(r"<!-- live: (.+?) -->", text) for name in names.split()]
    for name in live:
        size, stated = (site / "gallery" / name).stat().st_size, int(sizes[name].replace(",", ""))
        assert f"gallery/{name}" in page.links and abs(size - stated) < 0.05 * stated, f"{name}: {size:,} bytes"
    commands = re.findall(r"^stairwell export ([\w-]+) --.*  # ", text, re.MULTILINE)
    assert len(live) > 9 and set(commands) >= set(checkpoints.names()) - {"s5-32-feedback"}


def test_the_reference_lists_every_command_and_every_option(site: Path) -> None:
    import typer

    from stairwell.cli import main  # noqa: F401  registers every command
    from stairwell.cli.app import app
    from stairwell.cli.options import dotted_options

    commands = (site / "reference/command-line.html").read_text(encoding="utf-8")
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        assert f"stairwell {name}" in commands
        for option in (option for param in command.params for option in param.opts if "." not in option):
            forms = (option, option.upper(), option.replace("--", "--[no-]", 1))
            assert any(form in commands for form in forms), f"{name} {option}"
    configuration = (site / "reference/configuration.html").read_text(encoding="utf-8")
    missing = [name for name, _, _ in dotted_options() if f"--{name}<" not in configuration]
    assert not missing
    assert "presets: <code>ppo</code>" in configuration  # the preset of agents has other defaults than the config


def test_the_api_reference_documents_fields_and_methods(site: Path) -> None:
    from stairwell import FeedbackConfig

    page = (site / "reference/models.html").read_text(encoding="utf-8")
    assert "init_state" in page and all(field.name in page for field in fields(FeedbackConfig))


def test_the_reference_of_agents_shows_constructor_arguments(site: Path) -> None:
    html = (site / "reference/rl.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", html)
    for signature in (
        "MemoryLSTM(core",
        "MemoryGRU(core",
        "Memory(core",
        "MlpMemoryPolicy(observation_space",
        "Agent(config",
    ):
        assert signature in re.sub(r"\s+", "", text), signature
    for described in ("batch_first", "critic_memory", "out_key", "start_embedding", "last_reward", "indices"):
        assert described in text, described
    assert "make_features_extractor" not in text
