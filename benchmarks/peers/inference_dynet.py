"""Root scores of a binary tree-LSTM in DyNet with autobatching, without training."""

import dynet_config
from dynet_trees import arguments, read_trees, run

args = arguments()
dynet_config.set(mem=2048, autobatch=1, random_seed=1)
import dynet as dy  # noqa: E402
import numpy as np  # noqa: E402

DIM = 128
trees, words = read_trees(args.data)
model = dy.Model()
embed = model.add_lookup_parameters((words, DIM))
leaf_weights = [model.add_parameters((DIM, DIM)) for _ in "iou"]
inner_weights = [model.add_parameters((DIM, 2 * DIM)) for _ in "iou"]
forget_weights = [model.add_parameters((DIM, DIM)) for _ in "lr"]
biases = [model.add_parameters(DIM) for _ in "iouf"]
out = model.add_parameters((5, DIM))


def gates(weights, x):
    i, o, u = (dy.affine_transform([b, w, x]) for b, w in zip(biases[:3], weights, strict=True))
    return dy.logistic(i), dy.logistic(o), dy.tanh(u)


def state(tree):
    if tree.word is not None:
        i, o, u = gates(leaf_weights, embed[tree.word])
        c = dy.cmult(i, u)
    else:
        (left_h, left_c), (right_h, right_c) = state(tree.left), state(tree.right)
        i, o, u = gates(inner_weights, dy.concatenate([left_h, right_h]))
        left, right = (
            dy.logistic(dy.affine_transform([biases[3], w, h]))
            for w, h in zip(forget_weights, (left_h, right_h), strict=True)
        )
        c = dy.cmult(i, u) + dy.cmult(left, left_c) + dy.cmult(right, right_c)
    return dy.cmult(o, dy.tanh(c)), c


def step(batch):
    dy.renew_cg()
    scores = [out * state(tree)[0] for tree in batch]
    dy.forward(scores)
    return float(np.mean([score.npvalue().max() for score in scores]))


run("inference", args, trees, step)
