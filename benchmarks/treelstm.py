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


class WholeTreeLSTM(ln.Module):
    """The same, each tree placed in one call and read out in one product; trees are arrays from the start."""

    def __init__(self, words, data):
        self.embed = ln.nn.Embedding(words, DIM)
        self.lstm = ln.nn.TreeLSTM(DIM, DIM)
        self.out = ln.nn.Linear(DIM, CLASSES, bias=False)
        self.arrays = {id(tree): self.array_of(tree) for tree in data}

    @staticmethod
    def array_of(tree):
        number, children, rows, words, labels = {}, [], [], [], []
        for node in tree.postorder():
            number[id(node)] = len(children)
            children.append([] if node.is_leaf else [number[id(node.left)], number[id(node.right)]])
            rows.append(len(words) if node.is_leaf else -1)
            if node.is_leaf:
                words.append(node.word)
            labels.append(node.label)
        return ln.Structure(children, rows), words, labels

    def loss(self, graph, batch):
        losses = []
        for tree in batch:
            structure, words, labels = self.arrays[id(tree)]
            states = self.lstm(self.embed(graph, words), structure)
            losses.append(ln.cross_entropy(self.out(states.stacked().h), labels, reduction="sum"))
        return ln.sum(losses)


def main():
    args = arguments(50)
    data, words = trees(args)
    ln.seed(1)
    model = WholeTreeLSTM(words, data) if args.whole else TreeLSTM(words)
    trainer = Trainer(args, model, ln.optim.Adam(model.parameters(), lr=1e-3), model.loss)
    source = minibatches(data, args.batch)
    leaves = {id(tree): sum(node.is_leaf for node in tree.postorder()) for tree in data}
    run("treelstm", args, trainer, source, len, lambda batch: sum(leaves[id(t)] for t in batch), len)


if __name__ == "__main__":
    main()
