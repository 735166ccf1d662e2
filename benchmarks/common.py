"""What the benchmark programs share: arguments, corpora, the timed training loop, the one JSON line that they print."""

import argparse
import json
import os
import random
import resource
import time
from collections import Counter
from pathlib import Path

import lazynet as ln
from lazynet.data import Vocabulary, read_parallel, read_tagged, read_trees


def arguments(batch: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--bucketed", action="store_true", help="minibatches of similar length, not random order")
    parser.add_argument("--variant", default="lookahead", help="policy of the auto-batcher")
    parser.add_argument("--whole", action="store_true", help="place whole structures in one call, where the task can")
    parser.add_argument("--profile", action="store_true", help="time every kernel and print the table")
    parser.add_argument("--data", default=os.environ.get("LAZYNET_DATA"), help="folder of the corpora, or LAZYNET_DATA")
    args = parser.parse_args()
    if not args.data:
        parser.error("no corpora: give --data DIR or set LAZYNET_DATA to the folder that holds sst/ and ner/")
    ln.set_num_threads(args.threads)
    return args


def trees(args: argparse.Namespace) -> tuple[list, int]:
    """Training trees whose words are ids, and how many words there are."""
    loaded = read_trees(Path(args.data) / "sst" / "train.txt")
    vocabulary = {"_UNK_": 0}
    for tree in loaded:
        for node in tree.postorder():
            if node.is_leaf:
                node.word = vocabulary.setdefault(node.word, len(vocabulary))
    return loaded, len(vocabulary)


def tags(args: argparse.Namespace) -> tuple[list, int, int]:
    """Training sentences as (word ids, tag ids), and how many words and tags there are."""
    sentences = read_tagged(Path(args.data) / "ner" / "train.txt")
    count = Counter(word for words, _ in sentences for word in words)
    words, names = {"_UNK_": 0}, {}
    loaded = [
        (
            [words.setdefault(w, len(words)) if count[w] > 5 else 0 for w in sentence],
            [names.setdefault(t, len(names)) for t in labels],
        )
        for sentence, labels in sentences
    ]
    return loaded, len(words), len(names)


def parallel(args: argparse.Namespace) -> tuple[list, int, int]:
    """Training pairs as (source ids, target ids with <s> and </s> around them), and how many words each side has."""
    folder = Path(args.data) / "multi30k"
    pairs = [
        (a.split(), b.split()) for a, b in read_parallel(folder / "train.en", folder / "train.de", drop_empty=True)
    ]
    source = Vocabulary.build((a for a, _ in pairs), min_count=2)
    target = Vocabulary.build((b for _, b in pairs), min_count=2, specials=("<unk>", "<s>", "</s>"))
    begin, end = target.encode(["<s>", "</s>"])
    return [(source.encode(a), [begin, *target.encode(b), end]) for a, b in pairs], len(source), len(target)


def minibatches(items, size, key=None, bucketed=False, seed=0):
    rng = random.Random(seed)
    while True:
        order = list(range(len(items)))
        rng.shuffle(order)
        if bucketed:
            order.sort(key=lambda i: key(items[i]))
        groups = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
        rng.shuffle(groups)
        for group in groups:
            yield [items[i] for i in group]


class Trainer:
    """One update a minibatch, and where its time goes."""

    def __init__(self, args, model, optimizer, loss):
        self.graph = ln.Graph(policy=args.variant)
        self.graph.set_profiling(args.profile)
        self.optimizer, self.loss = optimizer, loss
        self.building = self.updating = 0.0

    def step(self, batch, read=True) -> float:
        """The loss, or 0 where it is not read: a device then need not be waited for."""
        start = time.perf_counter()
        with self.graph as graph:
            loss = self.loss(graph, batch)
            self.building += time.perf_counter() - start
            graph.forward(loss)
            graph.backward(loss)
            value = loss.item() if read else 0.0
        start = time.perf_counter()
        self.optimizer.step()
        self.updating += time.perf_counter() - start
        return value

    def reset(self):
        self.graph.reset_statistics()
        self.building = self.updating = 0.0

    def shares(self, wall: float) -> dict:
        """Where the wall time went, and what was run."""
        counts = self.graph.statistics()
        seconds = {
            "build": self.building,
            "schedule": counts["schedule_seconds"],
            "plan": counts["plan_seconds"],
            "forward": counts["forward_seconds"],
            "backward": counts["backward_seconds"],
            "update": self.updating,
        }
        row = {f"{name}_share": round(value / wall, 3) for name, value in seconds.items()}
        row["nodes"] = counts["nodes"]
        row["kernels"] = counts["kernels_forward"] + counts["kernels_backward"]
        row["gathered_mb"] = round(counts["gathered_bytes"] / 1e6, 1)
        return row


def run(task, args, trainer, source, sentences, tokens, scale):
    """Trains for args.seconds after a short warm-up; ``scale(batch)`` is what the printed loss is divided by."""
    first = None
    for _ in range(3):
        batch = next(source)
        loss = trainer.step(batch) / scale(batch)
        first = loss if first is None else first
    trainer.reset()
    n_sentences = n_tokens = 0
    losses = []
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        batch = next(source)
        losses.append(trainer.step(batch) / scale(batch))
        n_sentences += sentences(batch)
        n_tokens += tokens(batch)
    wall = time.perf_counter() - start
    tail = losses[-10:]
    row = {
        "task": task,
        "peer": "lazynet",
        "threads": args.threads,
        "batch": args.batch,
        "bucketed": args.bucketed,
        "sents_per_s": round(n_sentences / wall, 1),
        "tokens_per_s": round(n_tokens / wall, 1),
        "loss_first": round(first, 4),
        "loss_last": round(sum(tail) / len(tail), 4),
        "updates": len(losses),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    row.update(trainer.shares(wall))
    if args.profile:
        for op, profile in trainer.graph.profile().items():
            forward, backward, gather = (profile[f"{p}_seconds"] for p in ("forward", "backward", "gather"))
            print(
                f"{op:16} nodes {profile['nodes']:9} kernels {profile['forward_kernels']:7} "
                f"forward {forward / wall:.3f} backward {backward / wall:.3f} gather {gather / wall:.3f}"
            )
    print(json.dumps(row), flush=True)


def run_translation(task, make_model, learning_rate):
    """Trains ``make_model(source words, target words)``, which has ``loss(graph, batch)``, on Multi30k."""
    args = arguments(64)
    data, source_words, target_words = parallel(args)
    ln.seed(1)
    model = make_model(source_words, target_words)
    trainer = Trainer(args, model, ln.optim.Adam(model.parameters(), lr=learning_rate), model.loss)
    source = minibatches(data, args.batch, key=lambda pair: len(pair[0]), bucketed=args.bucketed)
    targets = lambda batch: sum(len(target) - 1 for _, target in batch)  # noqa: E731
    tokens = lambda batch: targets(batch) + sum(len(source) for source, _ in batch)  # noqa: E731
    run(task, args, trainer, source, len, tokens, targets)
