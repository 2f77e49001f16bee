"""The images of environments in the documentation are up to date."""

from __future__ import annotations

import runpy

import matplotlib.image
import numpy as np

from bench.records import ROOT


def test_images_in_the_documentation_equal_the_rendered_ones() -> None:
    """If this fails, run `python examples/environments.py`."""
    example = runpy.run_path(str(ROOT / "examples/environments.py"))
    for name in example["IMAGES"]:
        path = ROOT / f"docs/pictures/{name}.png"
        image = np.rint(matplotlib.image.imread(path)[..., :3] * 255).astype(np.uint8)
        assert np.array_equal(image, example["render"](name)) and path.stat().st_size < 8_000
