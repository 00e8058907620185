"""The C kernel: optional, and one binary for every CPython from 3.10 on.

All else about the package is in pyproject.toml.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CompileError, LinkError

OPTIMIZE = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fno-wrapv"]

# Free-threaded CPython has no limited API; there the recorder computes with torch.
HAS_LIMITED_API = not sysconfig.get_config_var("Py_GIL_DISABLED")


class BuildKernel(build_ext):
    """Compiles with the flags of the compiler at hand, and says plainly when there is none."""

    def build_extension(self, ext: Extension) -> None:
        """Build the kernel; setuptools warns of a failure and goes on, as it is optional."""
        if self.compiler.compiler_type != "msvc":
            ext.extra_compile_args = OPTIMIZE
        try:
            super().build_extension(ext)
        except (BaseError, CompileError, LinkError) as error:
            raise CompileError(
                f"{error}; Backlight is installed without its C kernel and records more slowly: "
                "install a C compiler and install Backlight again to have it."
            ) from error


KERNEL = Extension(
    "backlight.reduce._kernel",
    sources=["src/backlight/reduce/_kernel.c"],
    depends=sorted(map(str, Path("src/backlight/reduce").glob("_kernel*.h"))),
    define_macros=[("Py_LIMITED_API", "0x030A0000")],
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[KERNEL] if HAS_LIMITED_API else [],
    cmdclass={"build_ext": BuildKernel},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if HAS_LIMITED_API else {},
)
