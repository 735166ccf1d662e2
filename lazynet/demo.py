"""The main job: trains a binary tree-LSTM, batched across trees of every shape, and shows how it went.

``python -m lazynet.demo`` learns nested arithmetic on lists, which it generates itself; ``--data FOLDER`` takes a treebank
of s-expressions, ``train.txt`` and ``dev.txt``, such as the Stanford sentiment treebank.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

import lazynet as ln
from lazynet.data import Tree, generate_listops, minibatches, read_trees

UNKNOWN = "<unknown>"


class TreeClassifier(ln.Module):
    """A tree-LSTM and a classifier of every node that has a label."""

    def __init__(self, words: int, dim: int, classes: int) -> None:
        self.embed = ln.nn.Embedding(words, dim)
        self.cell = ln.nn.BinaryTreeLSTMCell(dim)
        self.out = ln.nn.Linear(dim, classes)

    def scores(self, graph: ln.Graph, tree: Tree, ids: dict[str, int]) -> list[tuple[ln.Node, int]]:
        """Scores and label of every labelled node, the root's last. Children come before parents."""
        states: list[ln.nn.LSTMState] = []
        found = []
        for node in tree.postorder():
            if node.is_leaf:
                state = self.cell.leaf(self.embed(graph, ids.get(node.word, 0)))
            else:
                right, left = states.pop(), states.pop()
                state = self.cell(left, right)
            states.append(state)
            if node.label >= 0:
                found.append((self.out(state.h), node.label))
        return found

    def loss(self, graph: ln.Graph, trees: Sequence[Tree], ids: dict[str, int]) -> ln.Node:
        """The mean over trees of the sum over their labelled nodes."""
        losses = [
            ln.cross_entropy(scores, label, reduction="sum")
            for tree in trees
            for scores, label in self.scores(graph, tree, ids)
        ]
        return ln.sum(losses) * (1 / len(trees))


def accuracy(model: TreeClassifier, trees: Sequence[Tree], ids: dict[str, int], batch: int) -> float:
    """Share of trees whose root is classified rightly."""
    graph = ln.Graph(train=False)
    right = 0
    for group in minibatches(trees, batch, shuffle=False):
        with graph:
            roots = [model.scores(graph, tree, ids)[-1] for tree in group]
            graph.forward(*[scores for scores, _ in roots])
            right += sum(int(scores.value.argmax()) == label for scores, label in roots)
    return right / len(trees)


class Report:
    """Seconds of every stage of one epoch, and what was run."""

    def __init__(self, graph: ln.Graph) -> None:
        self.graph = graph
        self.building = self.updating = 0.0
        self.trees = 0
        self.start = time.perf_counter()
        graph.reset_statistics()

    def text(self) -> str:
        """Three lines about the epoch."""
        wall = time.perf_counter() - self.start
        counts = self.graph.statistics()
        pool = counts["pool"]
        kernels = counts["kernels_forward"] + counts["kernels_backward"]
        seconds = {
            "building": self.building,
            "planning": counts["schedule_seconds"] + counts["plan_seconds"],
            "forward": counts["forward_seconds"],
            "backward": counts["backward_seconds"],
            "update": self.updating,
        }
        shares = ", ".join(f"{name} {value / wall:.0%}" for name, value in seconds.items())
        return (
            f"  {self.trees / wall:,.0f} trees/s, {counts['nodes'] / wall:,.0f} nodes/s; "
            f"{counts['nodes']:,} nodes computed in {counts['kernels_forward']:,} kernels ({kernels:,} with backward)\n"
            f"  time: {shares}\n"
            f"  pool: {pool['peak_bytes_in_use'] / 1e6:.1f} MB at most in use, {pool['bytes_reserved'] / 1e6:.1f} MB "
            f"reserved in {pool['chunks']} chunks, {pool['fragmentation']:.0%} fragmented"
        )


def train_epoch(
    model: TreeClassifier,
    optimizer: ln.optim.Optimizer,
    graph: ln.Graph,
    trees: Sequence[Tree],
    ids: dict[str, int],
    options: argparse.Namespace,
    epoch: int,
) -> str:
    """One pass over the trees; returns the report."""
    report = Report(graph)
    groups = list(minibatches(trees, options.batch, seed=epoch))
    progress = tqdm(groups, desc=f"epoch {epoch}", unit="batch", file=sys.stdout, leave=False)
    for group in progress:
        start = time.perf_counter()
        with graph:
            loss = model.loss(graph, group, ids)
            report.building += time.perf_counter() - start
            graph.forward(loss)
            graph.backward(loss)
            value = loss.item()
        start = time.perf_counter()
        optimizer.step(max_norm=5.0)
        report.updating += time.perf_counter() - start
        report.trees += len(group)
        progress.set_postfix(loss=f"{value:.3f}")
    return report.text()


def load(options: argparse.Namespace) -> tuple[list[Tree], list[Tree], str]:
    """Training trees, held-out trees, and what they are."""
    if options.data is None:
        count = 400 if options.quick else options.trees
        return (
            generate_listops(count, seed=1),
            generate_listops(max(count // 10, 50), seed=2),
            "nested arithmetic on lists (ListOps), generated",
        )
    folder = Path(options.data)
    train, dev = read_trees(folder / "train.txt"), read_trees(folder / "dev.txt")
    if options.quick:
        train, dev = train[:400], dev[:100]
    return train, dev, f"the treebank in {folder}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m lazynet.demo", description=__doc__.split("\n")[0])
    parser.add_argument("--data", metavar="FOLDER", help="treebank: train.txt and dev.txt, an s-expression a line")
    parser.add_argument("--trees", type=int, default=6000, help="how many trees to generate for training")
    parser.add_argument("--epochs", type=int, default=None, help="passes over the training trees")
    parser.add_argument("--batch", type=int, default=50, help="trees in a minibatch")
    parser.add_argument("--dim", type=int, default=96, help="size of words and states")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate of Adam")
    parser.add_argument("--threads", type=int, default=ln.num_threads(), help="threads of a kernel")
    parser.add_argument("--quick", action="store_true", help="a few hundred trees, to see that it runs")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> float:
    """Runs the demo and returns the last accuracy on held-out trees."""
    options = parse(arguments)
    ln.set_num_threads(options.threads)
    ln.seed(0)
    train, dev, what = load(options)
    words = Counter(node.word for tree in train for node in tree.postorder() if node.is_leaf)
    ids = {UNKNOWN: 0}
    for word in words:
        ids[word] = len(ids)
    classes = 1 + max(node.label for tree in train for node in tree.postorder())
    model = TreeClassifier(len(ids), options.dim, classes)
    optimizer = ln.optim.Adam(model.parameters(), lr=options.lr)
    constant = max(Counter(tree.label for tree in dev).values()) / len(dev)
    print(f"{len(train):,} training trees, {len(dev):,} held out: {what}")
    print(f"{len(ids):,} words, {classes} classes; the best constant answer is right {constant:.1%} of the time")
    graph = ln.Graph()
    score = 0.0
    epochs = options.epochs or (1 if options.quick else 6)
    for epoch in range(1, epochs + 1):
        report = train_epoch(model, optimizer, graph, train, ids, options, epoch)
        score = accuracy(model, dev, ids, options.batch)
        print(f"epoch {epoch}: {score:.1%} of held-out trees right\n{report}", flush=True)
        optimizer.lr *= 0.8
    return score


def run() -> Any:
    """The command: errors of the user in one line."""
    try:
        main()
    except ln.errors.LazyNetError as error:
        raise SystemExit(f"demo: {error}") from None


if __name__ == "__main__":
    run()
