"""LazyNet and PyTorch on one GPU: training speed, launches and what the device could do at most, in one table.

python -m benchmarks.gpu [--data DIR] [--out DIR] [--minutes 4.5]

Needs an NVIDIA GPU and CuPy, and PyTorch for the comparison. Without ``--data`` (the corpora of the other benchmarks)
data are random, of the same lengths and shapes. Every task runs in a process of its own, which first checks that both
libraries give the same loss and gradients for the same weights. Then they take turns on the same minibatches: forward,
backward, one step of Adam, building of graphs and padding included. Products of float32 are without TF32 in both.

``--check`` runs the tests that need a GPU instead. ``--device cpu --torch-device cpu --quick`` tries the program on a
machine without one, with models and minibatches so small that its numbers say nothing. benchmarks/gpu.sh builds, tests
and measures on a machine that has nothing yet.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import lazynet as ln
from benchmarks import gpu_report

TASKS = ("treelstm", "treelstm-whole", "tagger", "seq2seq", "transformer", "transformer-bucketed")
NO_GPU = 2  # exit status


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; all where left out")
    parser.add_argument("--data", default=os.environ.get("LAZYNET_DATA"), help="folder of the corpora, or LAZYNET_DATA")
    parser.add_argument("--device", default="cuda", help="LazyNet's: cuda, cuda:1, cpu, emulated")
    parser.add_argument("--torch-device", help="PyTorch's; that of LazyNet where left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of one library in one round, about")
    parser.add_argument(
        "--minutes", type=float, help="for all, 4.5 on a GPU; rounds are left out where time runs short"
    )
    parser.add_argument("--batch", type=int, help="examples a minibatch; by default those of the task's own benchmark")
    parser.add_argument("--threads", type=int, default=2, help="on the CPU")
    parser.add_argument("--quick", action="store_true", help="tiny models, to try the program")
    parser.add_argument("--profile", action="store_true", help="time LazyNet's kernels after the rounds")
    parser.add_argument("--out", default=os.environ.get("OUT"), help="folder for gpu.txt and gpu.json, or OUT")
    parser.add_argument("--check", action="store_true", help="run the tests that need a GPU, and nothing else")
    parser.add_argument("--child", help=argparse.SUPPRESS)  # the task of this process
    parser.add_argument("--limit", type=float, default=1e9, help=argparse.SUPPRESS)  # seconds it may take, about
    args = parser.parse_args()
    unknown = [task for task in args.tasks if task not in TASKS]
    if unknown:
        parser.error(f"no task is named {' or '.join(unknown)}; there are {', '.join(TASKS)}")
    args.tasks = args.tasks or list(TASKS)
    args.minutes = args.minutes or (4.5 if args.device.startswith("cuda") else 30)
    args.torch_device = args.torch_device or ("cpu" if args.device == "emulated" else args.device)
    return args


def last_row(output) -> dict:
    """Of what a child printed, which may have been stopped: each row says more than the one before."""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:  # it was stopped within the line
                continue
    return {}


def run_child(name: str, limit: float, stop: float) -> dict:
    """The row of one part, with ``"error"`` where it did not come to its end."""
    command = [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:], "--child", name, "--limit", f"{limit:.1f}"]
    start = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, timeout=stop, check=False)
        row, said = last_row(done.stdout), done.stderr.decode(errors="replace").strip()
        if done.returncode:
            row.setdefault("error", said.splitlines()[-1] if said else f"exit status {done.returncode}")
            row["stderr"] = said[-4000:]
    except subprocess.TimeoutExpired as expired:
        row = last_row(expired.stdout)
        row["error"] = f"stopped after {stop:.0f} s"
        row["stderr"] = (expired.stderr or b"").decode(errors="replace")[-4000:]
    row["seconds"] = round(time.monotonic() - start, 1)
    return row


def run_all(args) -> dict:
    """Roofs first, then task after task, each with its share of the time that is left."""
    end = time.monotonic() + 60 * args.minutes
    left = lambda: max(end - time.monotonic(), 1)  # noqa: E731
    results = {"roofs": run_child("roofs", left() / 4, left() / 3), "tasks": {}}
    print(gpu_report.of_roofs(results["roofs"]), flush=True)
    for number, task in enumerate(args.tasks):
        share = left() / (len(args.tasks) - number)
        row = results["tasks"][task] = run_child(task, share, min(1.5 * share + 10, left() + 10))
        print(f"{task}: {row['seconds']} s{', ' + row['error'] if 'error' in row else ''}", file=sys.stderr, flush=True)
    return results


def main() -> int:
    args = parse()
    kind = args.device.partition(":")[0]
    if kind == "cuda" and not ln.cuda.is_available():
        print(
            "benchmarks.gpu: no GPU can be used (an NVIDIA GPU, its driver and CuPy are required); "
            "--device cpu --torch-device cpu --quick tries the program without one"
        )
        return NO_GPU
    if args.child:
        from benchmarks import gpu_tasks

        return gpu_tasks.run(args)
    if args.check:
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-W", "default"]  # CuPy may warn
        status = subprocess.run(command, cwd=Path(__file__).resolve().parent.parent, check=False).returncode
        print(f"{' '.join(command[1:])}: {'passed' if status == 0 else f'failed, exit status {status}'}")
        return status
    results = run_all(args)
    text = gpu_report.of_all(results)
    print(text)
    if args.out:
        folder = Path(args.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gpu.txt").write_text(gpu_report.of_roofs(results["roofs"]) + "\n" + text + "\n")
        (folder / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")
    good = all("error" not in row and row.get("check", {}).get("same", True) for row in results["tasks"].values())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
