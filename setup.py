"""Builds the C++ core: its sources once, its kernels once for every vector unit, then the cffi module."""

import os
import platform
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CORE = ["csrc", "csrc/ops", "csrc/passes", "csrc/cuda"]
KERNELS = "csrc/cpu"
ONCE = {"backend.cc", "dispatch.cc"}  # of the kernels' folder: not a vector unit's
COMMON_FLAGS = ["-std=c++17", "-fvisibility=hidden", "-fPIC", "-pthread"]
CORE_FLAGS = ["-O2"]
# NaN and infinity keep their meaning: these flags only let loops with comparisons be vectorised.
KERNEL_FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
X86_UNITS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx2",
        "-mfma",
        "-mprefer-vector-width=512",
    ],
}
UNITS = X86_UNITS if platform.machine() in ("x86_64", "AMD64") else {"portable": []}
if chosen := os.environ.get("LAZYNET_UNITS"):  # fewer, for a quick build
    UNITS = {unit: UNITS[unit] for unit in chosen.split()}


def jobs() -> "list[tuple[str, str, list[str]]]":
    """Source, name of its folder of objects, flags."""
    result = []
    for folder in CORE:
        result += [(str(source), "core", CORE_FLAGS) for source in sorted(Path(folder).glob("*.cc"))]
    # A family's launchers; its kernels are compiled at run time, for the device at hand.
    result += [(str(source), "core", CORE_FLAGS) for source in sorted(Path("csrc/cuda").glob("*.cu"))]
    have = [f"-DLN_HAVE_{unit}" for unit in UNITS]
    for source in sorted(Path(KERNELS).glob("*.cc")):
        if source.name in ONCE:
            result.append((str(source), "core", CORE_FLAGS + have))
            continue
        for unit, flags in UNITS.items():
            result.append((str(source), unit, [*KERNEL_FLAGS, *flags, f"-DLN_UNIT={unit}"]))
    # Long compilations first, so that the last one to finish is short.
    return sorted(result, key=lambda job: -os.path.getsize(job[0]))


def included(source: str, known: "dict[str, set[str]]") -> "set[str]":
    """The source and all files of the project that it includes."""
    source = os.path.normpath(source)
    if source not in known:
        known[source] = {source}
        for name in re.findall(r'#include "([^"]+)"', Path(source).read_text()):
            path = os.path.join(os.path.dirname(source), name)
            if os.path.exists(path):
                known[source] |= included(path, known)
    return known[source]


class BuildCore(build_ext):
    """Compiles the core's objects in parallel, those that are out of date, and links them into the module."""

    def run(self):
        super().run()
        copy_kernel_sources(Path("." if self.inplace else self.build_lib) / "lazynet" / "_csrc")

    def build_extension(self, ext):
        if ext.name == "lazynet._nodes":
            super().build_extension(ext)
            return
        known = {}
        self.compiler.src_extensions.append(".cu")
        extra = os.environ.get("LAZYNET_CXXFLAGS", "").split()

        def compile_one(job):
            source, folder, flags = job
            output = os.path.join(self.build_temp, folder)
            target = Path(output) / Path(source).with_suffix(".o")
            newest = max(map(os.path.getmtime, {*included(source, known), "setup.py"}))
            if not self.force and not extra and target.exists() and target.stat().st_mtime > newest:
                return str(target)
            arguments = [*COMMON_FLAGS, *flags, *extra]
            language = ["-xc++"]  # of .cu files too
            return self.compiler.compile([source], output_dir=output, extra_preargs=language, extra_postargs=arguments)[
                0
            ]

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            ext.extra_objects = ext.depends = list(pool.map(compile_one, jobs()))
        super().build_extension(ext)


def copy_kernel_sources(to: Path) -> None:
    """What the run-time compiler of a GPU reads."""
    shutil.rmtree(to, ignore_errors=True)
    files = [Path("csrc/kernel.h"), *Path("csrc/ops").glob("*.h"), *Path("csrc/ops").glob("*.def")]
    files += [*Path("csrc/cuda").glob("*.cu"), *Path("csrc/cuda").glob("*.h"), *Path("csrc/cuda/nvrtc").iterdir()]
    for file in files:
        target = to / file.relative_to("csrc")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


nodes = Extension(
    "lazynet._nodes",
    sorted(map(str, Path("csrc/python").glob("*.cc"))),
    depends=["csrc/lazynet.h", "csrc/python/handle.h"],
    extra_compile_args=["-std=c++17", "-O2", "-fvisibility=hidden"],
    language="c++",
)
setup(ext_modules=[nodes], cmdclass={"build_ext": BuildCore}, cffi_modules=["lazynet/_build.py:ffi"])
