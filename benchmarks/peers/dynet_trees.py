"""What the DyNet programs of this folder share; they need DyNet (the wheel dynet38) and no LazyNet."""

import argparse
import json
import os
import random
import re
import resource
import time


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1, help="taken and left alone: DyNet has one thread")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--data", default=os.environ.get("LAZYNET_DATA", "."))
    return parser.parse_args()


class Tree:
    """A node: its label, and a word or two children."""

    __slots__ = ("label", "left", "right", "word")

    def __init__(self, label, word=None, left=None, right=None):
        self.label, self.word, self.left, self.right = label, word, left, right


def read_trees(folder):
    """Trees of sst/train.txt with words as ids, and how many words there are."""
    vocabulary, trees = {"_UNK_": 0}, []
    with open(os.path.join(folder, "sst", "train.txt"), encoding="utf8") as file:
        for line in file:
            stack = []
            for token in re.findall(r"[()]|[^() \n]+", line):
                if token == "(":
                    stack.append([])
                elif token == ")":
                    label, *rest = stack.pop()
                    if len(rest) == 1:
                        node = Tree(int(label), word=vocabulary.setdefault(rest[0], len(vocabulary)))
                    else:
                        node = Tree(int(label), left=rest[0], right=rest[1])
                    if stack:
                        stack[-1].append(node)
                    else:
                        trees.append(node)
                else:
                    stack[-1].append(token)
    return trees, len(vocabulary)


def run(task, args, trees, step):
    """Times step(minibatch), which returns a number a tree, and prints one JSON line."""
    order = random.Random(0)

    def minibatch():
        return order.sample(trees, args.batch)

    results = [step(minibatch()) for _ in range(3)]
    updates, start = 0, time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        results.append(step(minibatch()))
        updates += 1
    wall = time.perf_counter() - start
    row = {
        "task": task,
        "peer": "dynet",
        "batch": args.batch,
        "sents_per_s": round(updates * args.batch / wall, 1),
        "loss_first": round(results[0], 4),
        "loss_last": round(sum(results[-10:]) / len(results[-10:]), 4),
        "updates": updates,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(row), flush=True)
