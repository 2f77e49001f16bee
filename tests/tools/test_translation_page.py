"""The comparison of an exported page with the command line counts translations that differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.test_page import BROWSER
from tools import translation_page


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed to open the page in")
def test_page_is_compared_with_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "source.de").write_text("ein <b> hund </script> läuft .\n\nzwei frauen .\nnicht gelesen\n")
    arguments = ["multi30k-de-en", str(tmp_path / "source.de"), "--lines", "3"]
    translation_page.main(arguments)
    same = capsys.readouterr().out.splitlines()
    assert same[:4] == [
        f"{weights}, beam {beam}: 0 of 3 differ from the command line in {weights}"
        for weights in ("float32", "int8")
        for beam in (1, 5)
    ]
    assert same[4].startswith("beam 1: ") and same[5].endswith(" of 3 differ between int8 and float32")
    real = translation_page.translate
    monkeypatch.setattr(translation_page, "translate", lambda *given: [*real(*given)[:2], "another"])
    translation_page.main(arguments)
    assert capsys.readouterr().out.startswith("float32, beam 1: 1 of 3 differ")
