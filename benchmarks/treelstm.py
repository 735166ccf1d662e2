"""Binary tree-LSTM on the Stanford treebank, a loss at every node: python -m benchmarks.treelstm --data DIR."""

import lazynet as ln
from benchmarks.common import Trainer, arguments, minibatches, run, trees

DIM, CLASSES = 128, 5


class TreeLSTM(ln.Module):
    def __init__(self, words):
        self.embed = ln.nn.Embedding(words, DIM)
        self.cell = ln.nn.BinaryTreeLSTMCell(DIM)
        self.out = ln.nn.Linear(DIM, CLASSES, bias=False)

    def state(self, graph, tree, losses):
        if tree.is_leaf:
            state = self.cell.leaf(self.embed(graph, tree.word))
        else:
            state = self.cell(self.state(graph, tree.left, losses), self.state(graph, tree.right, losses))
        losses.append(ln.cross_entropy(self.out(state.h), tree.label, reduction="sum"))
        return state

    def loss(self, graph, batch):
        losses = []
        for tree in batch:
            self.state(graph, tree, losses)
        return ln.sum(losses)


def main():
    args = arguments(50)
    data, words = trees(args)
    ln.seed(1)
    model = TreeLSTM(words)
    trainer = Trainer(args, model, ln.optim.Adam(model.parameters(), lr=1e-3), model.loss)
    source = minibatches(data, args.batch)
    leaves = {id(tree): sum(node.is_leaf for node in tree.postorder()) for tree in data}
    run("treelstm", args, trainer, source, len, lambda batch: sum(leaves[id(t)] for t in batch), len)


if __name__ == "__main__":
    main()
