"""A tree cell of one's own, with highway gates and layer norm, on the Stanford treebank: python -m benchmarks.highway.

It is in no library: what a user writes, and the cell makes of it. Highway gates as in Srivastava et al. 2015: a gate
chooses between a new state and what is kept, here of two children.
"""

import lazynet as ln
from benchmarks.common import Trainer, arguments, minibatches, run, trees

DIM, CLASSES = 128, 5


class HighwayTree(ln.Module):
    def __init__(self, words):
        self.embed = ln.nn.Embedding(words, DIM)
        self.word = ln.nn.Linear(DIM, DIM)
        self.candidate, self.transform, self.carry = (ln.nn.Linear(2 * DIM, DIM) for _ in range(3))
        self.norm = ln.nn.LayerNorm(DIM)
        self.out = ln.nn.Linear(DIM, CLASSES, bias=False)

    @ln.cell
    def leaf(self, x):
        return ln.tanh(self.norm(self.word(x)))

    @ln.cell
    def inner(self, left, right):
        pair = ln.concat([left, right])
        new = ln.tanh(self.norm(self.candidate(pair)))
        t, r = ln.sigmoid(self.transform(pair)), ln.sigmoid(self.carry(pair))
        return t * new + (1 - t) * (r * left + (1 - r) * right)

    def state(self, graph, tree, losses):
        if tree.is_leaf:
            h = self.leaf(self.embed(graph, tree.word))
        else:
            h = self.inner(self.state(graph, tree.left, losses), self.state(graph, tree.right, losses))
        losses.append(ln.cross_entropy(self.out(h), tree.label, reduction="sum"))
        return h

    def loss(self, graph, batch):
        losses = []
        for tree in batch:
            self.state(graph, tree, losses)
        return ln.sum(losses)


def main():
    args = arguments(50)
    data, words = trees(args)
    ln.seed(1)
    model = HighwayTree(words)
    trainer = Trainer(args, model, ln.optim.Adam(model.parameters(), lr=1e-3), model.loss)
    leaves = {id(tree): sum(node.is_leaf for node in tree.postorder()) for tree in data}
    run("highway", args, trainer, minibatches(data, args.batch), len, lambda b: sum(leaves[id(t)] for t in b), len)


if __name__ == "__main__":
    main()
