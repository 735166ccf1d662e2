"""The tree cell of benchmarks/highway.py in DyNet with autobatching."""

import dynet_config
from dynet_trees import arguments, read_trees, run

args = arguments()
dynet_config.set(mem=4096, autobatch=1, random_seed=1)
import dynet as dy  # noqa: E402

DIM = 128
trees, words = read_trees(args.data)
model = dy.Model()
embed = model.add_lookup_parameters((words, DIM))
leaf, bias = model.add_parameters((DIM, DIM)), model.add_parameters(DIM)
candidate, transform, carry = (model.add_parameters((DIM, 2 * DIM)) for _ in range(3))
biases = [model.add_parameters(DIM) for _ in range(3)]
gain, shift = model.add_parameters(DIM, init=1.0), model.add_parameters(DIM, init=0.0)
out = model.add_parameters((5, DIM))
trainer = dy.AdamTrainer(model, 1e-3)
trainer.set_clip_threshold(-1.0)
trainer.set_sparse_updates(True)


def state(tree, losses):
    if tree.word is not None:
        h = dy.tanh(dy.layer_norm(dy.affine_transform([bias, leaf, embed[tree.word]]), gain, shift))
    else:
        left, right = state(tree.left, losses), state(tree.right, losses)
        pair = dy.concatenate([left, right])
        new = dy.tanh(dy.layer_norm(dy.affine_transform([biases[0], candidate, pair]), gain, shift))
        t = dy.logistic(dy.affine_transform([biases[1], transform, pair]))
        r = dy.logistic(dy.affine_transform([biases[2], carry, pair]))
        kept = dy.cmult(r, left - right) + right
        h = dy.cmult(t, new - kept) + kept
    losses.append(dy.pickneglogsoftmax(out * h, tree.label))
    return h


def step(batch):
    dy.renew_cg()
    losses = []
    for tree in batch:
        state(tree, losses)
    loss = dy.esum(losses)
    value = loss.value()
    loss.backward()
    trainer.update()
    return value / len(batch)


run("highway", args, trees, step)
