"""Builds the optional native engine. Everything else about the package is in pyproject.toml.

The extension is built when torch and a C++ compiler are there (`pip install --no-build-isolation .`); without them, or
if it fails, the install goes on without it and the engines run in PyTorch.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from setuptools import setup

CSRC = "stairwell/fast/csrc"
WALKS = [f"walk_{instructions}.cpp" for instructions in ("generic", "avx2", "avx512")]
SOURCES = ["feedback.cpp", "staircase.cpp", "scores.cpp", "delta.cpp", *WALKS]
LOOPS = ["climb.h", "scores.h", "delta.h", "vector.h", "tile.h", "forward.h", "backward.h"]
HEADERS = ["plan.h", "call.h", "kernels.h", *LOOPS]
TORCH_2_10 = "-DTORCH_TARGET_VERSION=0x020a000000000000"


def native() -> dict[str, Any]:
    """What setup() needs for the extension; nothing where it cannot be built or is not wanted."""
    if os.environ.get("STAIRWELL_NATIVE") == "0" or sys.platform == "win32":
        return {}
    try:
        from torch.utils.cpp_extension import BuildExtension, CppExtension
    except ImportError:
        return {}

    class OptionalBuild(BuildExtension):  # type: ignore[misc, valid-type]
        """A failed build is reported and left out."""

        def run(self) -> None:
            try:
                super().run()
            except Exception as error:
                print(f"stairwell: no native engine, PyTorch's will run; its build said: {error}", file=sys.stderr)
                self.extensions = []

    extension = CppExtension(
        "stairwell.fast._native",
        [f"{CSRC}/{source}" for source in SOURCES],
        depends=[f"{CSRC}/{header}" for header in HEADERS],
        include_dirs=[CSRC],
        extra_compile_args=[
            *["-std=c++17", "-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"],
            *["-fvisibility=hidden", "-g0", "-Wno-psabi", TORCH_2_10],
        ],
        py_limited_api=True,
    )
    return {
        "ext_modules": [extension],
        "cmdclass": {"build_ext": OptionalBuild},
        "options": {"bdist_wheel": {"py_limited_api": "cp311"}},
    }


setup(**native())
