"""Build the native library with the package. All other settings are in pyproject.toml.

The library needs a C++17 compiler, but neither torch nor Python headers. Without a compiler the installation succeeds
and the PyTorch engines run instead; `stairwell info` shows which engines are active.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CSRC = "stairwell/fast/csrc"
KERNELS = [f"kernels_{name}.cpp" for name in ("generic", "avx2", "avx512")]
SOURCES = ["interface.cpp", "decode.cpp", "feedback.cpp", "staircase.cpp", "scores.cpp", "delta.cpp", *KERNELS]
KERNEL_HEADERS = ["staircase.h", "decode.h", "scores.h", "delta.h", "vector.h", "tile.h", "forward.h", "backward.h"]
HEADERS = ["interface.h", "step.h", "instruction_sets.h", "plan.h", "call.h", "kernels.h", *KERNEL_HEADERS]
FLAGS = ["-std=c++17", "-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]


class OptionalBuild(build_ext):
    """Build the library; if the build fails, print one line and install without it."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            print(f"stairwell: installing without the native engine (build failed: {error})", file=sys.stderr)
            self.extensions = []


native = Extension(
    "stairwell.fast._native",
    [f"{CSRC}/{source}" for source in SOURCES],
    depends=[f"{CSRC}/{header}" for header in HEADERS],
    include_dirs=[CSRC],
    language="c++",
    extra_compile_args=[*FLAGS, "-fvisibility=hidden", "-g0", "-Wno-psabi", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)
build = os.environ.get("STAIRWELL_NATIVE") != "0" and sys.platform != "win32"
setup(
    ext_modules=[native] if build else [],
    cmdclass={"build_ext": OptionalBuild},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
