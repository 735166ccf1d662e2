"""Sentiment of every phrase of a sentence: a binary tree-LSTM on the Stanford Sentiment Treebank.

The model of Tai et al. 2015 (Improved Semantic Representations From Tree-Structured Long Short-Term Memory Networks),
without pretrained word vectors. It is written for one tree; the trees of a minibatch, each of another shape, run together.

    python examples/sentiment_treelstm.py --quick
    python examples/sentiment_treelstm.py --data DIR --save sentiment.safetensors

DIR holds train.txt, dev.txt and test.txt, an s-expression a line: (3 (2 It) (4 works)). --quick learns nested arithmetic
on lists, which it generates. Of five classes the root's is right for 48.2 % of the dev sentences and 45.2 % of the test
sentences, 79.7 % and 79.6 % of all nodes, after a minute on one core.
"""

import argparse
from pathlib import Path

from tqdm import tqdm

import lazynet as ln
from lazynet.data import Vocabulary, generate_listops, minibatches, read_trees

NO_LABEL = -1  # generated trees have nodes without one


class TreeClassifier(ln.Module):
    """A tree-LSTM, and the class of every node from its state."""

    def __init__(self, words, classes, options):
        self.embed = ln.nn.Embedding(words, options.embedding)
        self.embed.weight.value *= 0.1  # words that are seen once or twice should not count for much
        self.cell = ln.nn.BinaryTreeLSTMCell(options.hidden, options.embedding)
        self.out = ln.nn.Linear(options.hidden, classes)
        self.dropout = ln.nn.Dropout(options.dropout)

    def state(self, tree, words, states):
        """The state of a tree's root; appends those of all its nodes, children before parents."""
        if tree.is_leaf:
            state = self.cell.leaf(next(words))
        else:
            left = self.state(tree.left, words, states)
            state = self.cell(left, self.state(tree.right, words, states))
        states.append(state.h)
        return state

    def forward(self, graph, tree):
        """Scores of all nodes, a row each, the root's last."""
        words = self.dropout(self.embed(graph, [node.word for node in tree.postorder() if node.is_leaf]))
        states = []
        self.state(tree, iter(words), states)
        return self.out(self.dropout(ln.concat(states, axis=0)))


def labels(tree):
    """The labels of all nodes, in the order of the scores."""
    return [node.label for node in tree.postorder()]


def train_epoch(model, optimizer, graph, trees, options, epoch):
    """One pass over the trees; returns the mean loss of a tree."""
    mean = ln.metrics.Mean()
    with tqdm(total=len(trees), desc=f"epoch {epoch}", unit=" trees", leave=False) as progress:
        for batch in minibatches(trees, options.batch, seed=options.seed + epoch):
            with graph:
                losses = [
                    ln.cross_entropy(model(graph, tree), labels(tree), reduction="sum", ignore_index=NO_LABEL)
                    for tree in batch
                ]
                loss = ln.average(losses)
                graph.backward(loss)
                mean.update(loss.item(), len(batch))
            optimizer.step(max_norm=5.0)
            progress.set_postfix(loss=f"{mean.value:.3f}", refresh=False)
            progress.update(len(batch))
    return mean.value


def evaluate(model, trees):
    """Accuracy of the roots and of all nodes."""
    graph = ln.Graph(train=False)
    root, nodes = ln.metrics.Accuracy(), ln.metrics.Accuracy(ignore_index=NO_LABEL)
    for batch in minibatches(trees, 200, shuffle=False):
        with graph:
            scores = [model(graph, tree) for tree in batch]
            graph.forward(*scores)
            for each, tree in zip(scores, batch, strict=True):
                root.update(each.value[-1:], tree.label)
                nodes.update(each.value, labels(tree))
    return root.value, nodes.value


def parse(arguments):
    """The options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="DIR", help="folder of train.txt, dev.txt and test.txt")
    source.add_argument("--quick", action="store_true", help="a few hundred generated trees, to see that it runs")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--patience", type=int, default=4, help="epochs without improvement before it stops")
    parser.add_argument("--batch", type=int, default=25, help="trees in a minibatch")
    parser.add_argument("--embedding", type=int, default=128, help="size of word vectors")
    parser.add_argument("--hidden", type=int, default=128, help="size of states")
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=ln.num_threads())
    parser.add_argument("--save", metavar="FILE", help="checkpoint to write after every epoch")
    parser.add_argument("--resume", metavar="FILE", help="checkpoint to go on from")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Trains, and returns the figures of the best epoch."""
    options = parse(arguments)
    ln.set_num_threads(options.threads)
    ln.seed(options.seed)
    if options.quick:
        train, dev, test = (generate_listops(count, seed) for count, seed in ((600, 1), (100, 2), (100, 3)))
    else:
        train, dev, test = (read_trees(options.data / f"{name}.txt") for name in ("train", "dev", "test"))
    words = Vocabulary.build([node.word for node in tree.postorder() if node.is_leaf] for tree in train)
    for tree in train + dev + test:
        for node in tree.postorder():
            if node.is_leaf:
                node.word = words[node.word]
    model = TreeClassifier(len(words), 1 + max(label for tree in train for label in labels(tree)), options)
    optimizer = ln.optim.AdamW(model.parameters(), options.lr, weight_decay=options.weight_decay)
    stopping = ln.optim.EarlyStopping(options.patience, mode="max")
    graph = ln.Graph(seed=options.seed)
    parts = {"model": model, "optimizer": optimizer, "graph": graph, "stopping": stopping}
    done = ln.load(options.resume, **parts).step if options.resume else 0
    figures = {"losses": []}
    for epoch in range(done + 1, options.epochs + 1):
        if stopping.stop:
            break
        figures["losses"].append(train_epoch(model, optimizer, graph, train, options, epoch))
        root, nodes = evaluate(model, dev)
        stopping.update(root, model)
        print(
            f"epoch {epoch}: loss {figures['losses'][-1]:.3f}, dev root {root:.1%}, all nodes {nodes:.1%}", flush=True
        )
        if options.save:
            ln.save(options.save, **parts, step=epoch)
    stopping.restore(model)
    for name, trees in (("dev", dev), ("test", test)):
        figures[f"{name}_root"], figures[f"{name}_nodes"] = root, nodes = evaluate(model, trees)
        print(f"best model on {name}: root {root:.1%}, all nodes {nodes:.1%}")
    return figures


if __name__ == "__main__":
    main()
