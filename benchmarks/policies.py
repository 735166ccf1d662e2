"""Batches under every policy beside the lower bound: python -m benchmarks.policies [--size 16].

The learned policy is trained on other minibatches than those that are counted.
"""

import argparse
import time

import lazynet as ln
from benchmarks.structures import MODELS, minibatch


def count(model, policy, seeds, size):
    """Batches and their lower bound over minibatches."""
    graph, batches, bound = ln.Graph(policy=policy), 0, 0
    for seed in seeds:
        loss = minibatch(model, graph, seed, size)
        plan = graph.plan(loss)
        batches, bound = batches + len(plan.batches), bound + plan.lower_bound
    return batches, bound


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=16, help="examples a minibatch")
    parser.add_argument("--minibatches", type=int, default=10, help="for training, and again for counting")
    args = parser.parse_args()
    print(f"{'':10} {'depth':>7} {'agenda':>7} {'lookahead':>9} {'learned':>7} {'bound':>7}   learning")
    for name, make in MODELS.items():
        ln.seed(1)
        model = make()
        model.parameters()  # names them, by which a learned policy knows signatures
        graph, policy = ln.Graph(), ln.batching.FiniteState()

        def examples(model=model, graph=graph):
            for seed in range(args.minibatches):
                minibatch(model, graph, seed, args.size)
                yield graph

        examples_once = list(zip(range(1), examples(), strict=False))  # traces the cells
        assert examples_once
        start = time.perf_counter()
        learning = ln.batching.learn(policy, examples())
        seconds = time.perf_counter() - start
        seeds = range(1000, 1000 + args.minibatches)
        policies = ["depth", "agenda", "lookahead", policy]
        counts = [count(model, each, seeds, args.size) for each in policies]
        numbers = " ".join(f"{batches:{width}}" for (batches, _), width in zip(counts, (7, 7, 9, 7), strict=True))
        print(f"{name:10} {numbers} {counts[0][1]:7}   {learning}, {len(policy)} states, {seconds:.1f} s")


if __name__ == "__main__":
    main()
