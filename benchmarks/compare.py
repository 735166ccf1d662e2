"""LazyNet beside its peers on the same task, in turn, several rounds: medians and ratios.

python -m benchmarks.compare treelstm --data DIR --peers DIR [--peer-python PYTHON] [--rounds 5] [--seconds 8]

Peers are programs named TASK_NAME.py that take ``--threads`` and ``--seconds`` and print one JSON line: those of
benchmarks/peers, and of the folder ``--peers``. One whose library is not installed is left out, and said so.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

VARIANTS = {"torch": {"tagger": ["packed", "padded"], "seq2seq": ["packed", "padded"]}}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", choices=["treelstm", "tagger", "highway", "inference", "seq2seq", "transformer"])
    parser.add_argument("--data", default=os.environ.get("LAZYNET_DATA"), help="folder of the corpora, or LAZYNET_DATA")
    parser.add_argument("--peers", help="folder of the peer programs")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has the peers' libraries")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, help="examples a minibatch; by default each program's own")
    parser.add_argument("--whole", action="store_true", help="lazynet places whole structures in one call")
    parser.add_argument("--bucketed", action="store_true")
    parser.add_argument("--only", nargs="*", help="peers to run, by name: dynet torch numpy")
    args = parser.parse_args()
    if not args.data:
        parser.error("no corpora: give --data DIR or set LAZYNET_DATA")
    return args


def programs(args):
    """Name and command of everything that takes part."""
    common = ["--threads", str(args.threads), "--seconds", str(args.seconds)] + ["--bucketed"] * args.bucketed
    common += ["--batch", str(args.batch)] if args.batch else []
    own = ["--data", args.data] + ["--whole"] * args.whole
    yield "lazynet", [sys.executable, "-m", f"benchmarks.{args.task}", *common, *own]
    folders = [Path(__file__).parent / "peers"] + ([Path(args.peers)] if args.peers else [])
    for path in (path for folder in folders for path in sorted(folder.glob(f"{args.task}_*.py"))):
        peer = path.stem.removeprefix(f"{args.task}_")
        if args.only is not None and peer not in args.only:
            continue
        for variant in VARIANTS.get(peer, {}).get(args.task, [""]):
            command = [args.peer_python, str(path), *common] + (["--variant", variant] if variant else [])
            yield f"{peer}-{variant}" if variant else peer, command


def measure(command, environment):
    """The JSON line of one run, or None."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if done.returncode == 0 and lines else None


def main():
    args = parse()
    environment = {**os.environ, "LAZYNET_DATA": os.path.abspath(args.data)}
    results = {name: [] for name, _ in programs(args)}
    for number in range(args.rounds):
        for name, command in programs(args):
            if number > 0 and not results[name]:
                continue  # it did not run in the first round either
            row = measure(command, environment)
            if row is None:
                print(f"{name}: did not run (is its library installed for {command[0]}?)", flush=True)
            else:
                results[name].append(row)
                print(f"round {number + 1} {name:16} {row['sents_per_s']:9.1f} sentences/s", flush=True)
    medians = {n: statistics.median(r["sents_per_s"] for r in rows) for n, rows in results.items() if rows}
    print(
        f"\n{args.task}, {args.threads} threads, {'bucketed' if args.bucketed else 'random order'}, medians of {args.rounds}:"
    )
    for name, median in medians.items():
        ratios = [a["sents_per_s"] / b["sents_per_s"] for a, b in zip(results["lazynet"], results[name], strict=False)]
        memory = statistics.median(row["peak_rss_mb"] for row in results[name])
        print(f"{name:16} {median:9.1f} sentences/s  lazynet is {statistics.median(ratios):5.2f} x  {memory:6.0f} MB")
    shares = {k: v for k, v in results["lazynet"][-1].items() if k.endswith("_share")}
    print("lazynet's time:", ", ".join(f"{name.removesuffix('_share')} {share:.0%}" for name, share in shares.items()))


if __name__ == "__main__":
    main()
