"""The pictures in the documents are what the environments draw."""

from __future__ import annotations

import runpy

import matplotlib.image
import numpy as np

from bench.records import ROOT


def test_the_documents_show_what_is_drawn() -> None:
    """If this fails: python examples/environments.py."""
    example = runpy.run_path(str(ROOT / "examples/environments.py"))
    for name in example["PICTURES"]:
        path = ROOT / f"docs/pictures/{name}.png"
        shown = np.rint(matplotlib.image.imread(path)[..., :3] * 255).astype(np.uint8)
        assert np.array_equal(shown, example["draw"](name)) and path.stat().st_size < 8_000
