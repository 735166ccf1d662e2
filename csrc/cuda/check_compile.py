"""Compiles every kernel for every architecture, with nvcc and with NVRTC, and reports what each kernel takes.

``python csrc/cuda/check_compile.py [--jobs N] [--report FILE] [FAMILY ...]``, from the root of the repository. Fails
on a warning and on a kernel that spills registers. A compiler that is not there is left out, with a message.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

SOURCES = Path("csrc/cuda")
ARCHITECTURES = ("75", "80", "90", "100")
NVCC = ["nvcc", "-std=c++17", "-O3", "-cubin", "-Werror", "all-warnings", "-Xptxas", "-v,-warn-spills"]
# At run time a module has one element type, and of the operators that are chosen by a word only one.
MODULES = ("LN_ONLY_FLOAT", "LN_ONLY_DOUBLE")
PICKED = {"elementwise": "LN_ONLY_FLOAT LN_PICK=tanh"}
NVRTC_ARCHITECTURE = "90"  # nvcc does the others: the languages differ, not what is made of them


class Use(NamedTuple):
    """What one function takes on one architecture; registers 0 where it is not a kernel."""

    registers: int
    shared: int
    stack: int
    spills: int


class Result(NamedTuple):
    """Of one compilation: the functions by name, and why it failed."""

    title: str
    uses: dict[str, Use]
    errors: list[str]


def read_uses(text: str) -> dict[str, Use]:
    """What ptxas says of each function."""
    uses: dict[str, Use] = {}
    name = ""
    for line in text.splitlines():
        if found := re.search(r"Function properties for (\S+)", line):
            name = found[1]
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, stores, loads = map(int, found.groups())
            uses[name] = Use(0, 0, stack, stores + loads)
        elif (found := re.search(r"Used (\d+) registers", line)) and name in uses:
            shared = re.search(r"(\d+) bytes smem", line)
            uses[name] = uses[name]._replace(registers=int(found[1]), shared=int(shared[1]) if shared else 0)
    return uses


def with_nvcc(source: Path, architecture: str, folder: str) -> Result:
    """Compiles a file for an architecture."""
    title = f"{source} for sm_{architecture}"
    output = f"{folder}/{source.stem}.{architecture}.cubin"
    command = [*NVCC, f"-arch=sm_{architecture}", "-o", output, str(source)]
    run = subprocess.run(command, capture_output=True, text=True)
    text = run.stdout + run.stderr
    uses = read_uses(text)
    if run.returncode:
        lines = [line for line in text.splitlines() if not re.match("ptxas info|    .* bytes stack frame", line)]
        return Result(title, uses, ["\n".join([f"{title}: nvcc fails", *lines])])
    errors = [f"{title}: {name} spills {use.spills} bytes of registers" for name, use in uses.items() if use.spills]
    if not any(use.registers for use in uses.values()):
        errors.append(f"{title}: there are no kernels in it, or ptxas does not tell as it used to")
    return Result(title, uses, errors)


def with_nvrtc(family: str, defines: str) -> Result:
    """Compiles a module as the library does for a GPU."""
    import lazynet

    title = f"{family} by NVRTC ({defines})"
    try:
        lazynet.cuda.compile_kernels(family, None, defines, NVRTC_ARCHITECTURE)
    except lazynet.errors.DeviceError as error:
        return Result(title, {}, [f"{title}: {error}"])
    return Result(title, {}, [])


def missing_nvrtc() -> str:
    """Why NVRTC cannot be used; empty where it can."""
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:  # CuPy's own where a library is missing, and the loader's
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def report(results: dict[tuple[str, str], Result]) -> list[str]:
    """A line a kernel: registers by architecture, then what is the same for all or divided by slashes."""
    architectures = list(dict.fromkeys(architecture for _, architecture in results))
    kernels: dict[str, dict[str, Use]] = {}
    for (family, architecture), result in results.items():
        for name, use in result.uses.items():
            if use.registers or use.stack or use.spills:
                kernels.setdefault(f"{family}: {name}", {})[architecture] = use
    width = max(map(len, kernels), default=0)

    def numbers(uses: dict[str, Use], field: str) -> str:
        values = [str(getattr(uses[a], field)) if a in uses else "-" for a in architectures]
        return values[0] if len(set(values)) == 1 else "/".join(values)

    lines = [f"{'kernel':{width}}  registers {'/'.join(architectures)}, shared memory, stack, spills"]
    for name, uses in sorted(kernels.items()):
        registers = "/".join(str(uses[a].registers) if a in uses else "-" for a in architectures)
        rest = " ".join(f"{numbers(uses, field):>5}" for field in ("shared", "stack", "spills"))
        lines.append(f"{name:{width}}  {registers:>15} {rest}")
    return lines


def run_all(jobs: int, calls: Iterable[Callable[[], Result]]) -> list[Result]:
    """The results in the order of the calls."""
    with ThreadPoolExecutor(jobs) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="how many compilations run at once")
    parser.add_argument("--report", type=Path, help="a file for the report, which is printed too")
    parser.add_argument("families", nargs="*", help="files of csrc/cuda without .cu; all, if none are given")
    options = parser.parse_args()
    sources = [SOURCES / f"{family}.cu" for family in options.families] or sorted(SOURCES.glob("*.cu"))
    # Long ones first.
    by_size = sorted(sources, key=lambda source: -source.stat().st_size)
    errors: list[str] = []

    if shutil.which("nvcc"):
        with tempfile.TemporaryDirectory() as folder:
            keys = [(source, architecture) for source in by_size for architecture in ARCHITECTURES]
            results = run_all(options.jobs, [partial(with_nvcc, *key, folder) for key in keys])
        lines = report(
            {(source.stem, architecture): r for (source, architecture), r in zip(keys, results, strict=True)}
        )
        print("\n".join(lines), flush=True)
        if options.report:
            options.report.parent.mkdir(parents=True, exist_ok=True)
            options.report.write_text("\n".join(lines) + "\n")
        errors += [error for result in results for error in result.errors]
        print(f"cuda-check: nvcc compiled {len(sources)} files for {', '.join(ARCHITECTURES)}", flush=True)
    else:
        print("cuda-check: there is no nvcc here; the kernels are not compiled with it")

    if reason := missing_nvrtc():
        print(f"cuda-check: CuPy's NVRTC cannot be used here ({reason}); the kernels are not compiled with it")
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["LAZYNET_CACHE"] = folder  # an empty one: everything is compiled
            modules = [(source.stem, defines) for source in by_size for defines in MODULES]
            modules += [(family, defines) for family, defines in PICKED.items() if SOURCES / f"{family}.cu" in sources]
            results = run_all(options.jobs, [partial(with_nvrtc, *module) for module in modules])
        errors += [error for result in results for error in result.errors]
        print(f"cuda-check: NVRTC compiled {len(modules)} modules for {NVRTC_ARCHITECTURE}")

    for error in errors:
        print(f"cuda-check: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
