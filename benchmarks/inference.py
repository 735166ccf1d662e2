"""Root scores of a binary tree-LSTM without training, SST: python -m benchmarks.inference --batch 1 (latency) or 200."""

import numpy as np

import lazynet as ln
from benchmarks.common import arguments, minibatches, run, trees
from benchmarks.treelstm import TreeLSTM


class Server:
    """Scores of a minibatch; what benchmarks.common.run calls a trainer."""

    def __init__(self, args, model):
        self.graph, self.model = ln.Graph(train=False, policy=args.variant), model

    def state(self, tree):
        model = self.model
        if tree.is_leaf:
            return model.cell.leaf(model.embed(self.graph, tree.word))
        return model.cell(self.state(tree.left), self.state(tree.right))

    def step(self, batch):
        with self.graph as graph:
            scores = [self.model.out(self.state(tree).h) for tree in batch]
            graph.forward(*scores)
            return float(np.sum([score.value.max() for score in scores]))

    def reset(self):
        self.graph.reset_statistics()

    def shares(self, wall):
        counts = self.graph.statistics()
        return {f"{name}_share": round(counts[f"{name}_seconds"] / wall, 3) for name in ("schedule", "plan", "forward")}


def main():
    args = arguments(1)
    data, words = trees(args)
    ln.seed(1)
    leaves = {id(tree): sum(node.is_leaf for node in tree.postorder()) for tree in data}
    source = minibatches(data, args.batch)
    run("inference", args, Server(args, TreeLSTM(words)), source, len, lambda b: sum(leaves[id(t)] for t in b), len)


if __name__ == "__main__":
    main()
