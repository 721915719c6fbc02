"""Builds with CMake; everything else about the package is in pyproject.toml.

DFLASH_CUDA=AUTO|ON|OFF, DFLASH_CUDA_ARCHS="80-real;90a-real", DFLASH_PTXRUN=ON, DFLASH_SANITIZE=ON
and MAX_JOBS steer the build.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def environment():
    """The caller's, and nvcc from its PyPI package if installed: its libraries are not in lib64."""
    cuda = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"
    if not (cuda / "bin" / "nvcc").exists():
        return os.environ
    return os.environ | {
        "CUDACXX": str(cuda / "bin" / "nvcc"),
        "NVCC_APPEND_FLAGS": f"-L{cuda / 'lib'}",
    }


class CMakeBuild(build_ext):
    def run(self):
        build = ROOT / "build" / sys.implementation.cache_tag
        prefix = ROOT / "python" if self.inplace else Path(self.build_lib).resolve()
        # What this build does not make must not stay from one that did: a CUDA or a ptx library.
        for folder in (prefix / "dflash_ops", ROOT / "tools" / "ptxrun"):
            for stale in folder.glob("*.so"):
                stale.unlink()

        options = {
            "Python_EXECUTABLE": sys.executable,
            "DFLASH_VERSION": self.distribution.get_version(),
            "CMAKE_INSTALL_PREFIX": prefix,
        }
        options |= {
            key: os.environ[key]
            for key in ("DFLASH_CUDA", "DFLASH_CUDA_ARCHS", "DFLASH_PTXRUN", "DFLASH_SANITIZE")
            if key in os.environ
        }
        beside_python = Path(sys.executable).parent  # .venv/bin, where pip puts ccache
        if ccache := shutil.which("ccache", path=f"{beside_python}:{os.environ.get('PATH', '')}"):
            options["CMAKE_CXX_COMPILER_LAUNCHER"] = ccache
            # nvcc from a package is as old as its installation: know it by its content.
            options["CMAKE_CUDA_COMPILER_LAUNCHER"] = f"{ccache};compiler_check=content"

        cmake = [sys.executable, "-m", "cmake"]
        defines = [f"-D{key}={value}" for key, value in options.items()]
        for step in (
            ["-S", ROOT, "-B", build, "-G", "Ninja", *defines],
            ["--build", build, "-j", os.environ.get("MAX_JOBS", "2")],
            ["--install", build, "--strip"],
        ):
            subprocess.check_call([*cmake, *step], env=environment())

    def get_outputs(self):
        return []

    def get_output_mapping(self):
        return {}


# The extension has no sources: it tells setuptools that the wheel is for one platform.
setup(ext_modules=[Extension("dflash_ops._C", [])], cmdclass={"build_ext": CMakeBuild})
