"""The benchmark models in PyTorch, batched by hand as one would on a GPU; parameters carry LazyNet's names.

``collate`` turns a minibatch into arrays with NumPy, ``loss`` gives the sum over a minibatch; both count as training.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from benchmarks import seq2seq, tagger, transformer, treelstm


def on_device(device, **arrays):
    """Arrays of integers in one copy."""
    flat = [np.ascontiguousarray(array, np.int64).reshape(-1) for array in arrays.values()]
    parts = torch.from_numpy(np.concatenate(flat)).to(device).split([array.size for array in flat])
    return [part.view(array.shape) for part, array in zip(parts, arrays.values(), strict=True)]


def padded(sequences):
    """The sequences as rows, zeros after them; and where they are."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    real = np.arange(lengths.max(initial=0)) < lengths[:, None]
    ids = np.zeros(real.shape, np.int64)
    ids[real] = np.concatenate(sequences)
    return ids, real


# ---- tree-LSTM: all trees of a minibatch level by level


class BinaryCell(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.leaf_weight = nn.Parameter(torch.empty(3 * dim, dim))
        self.inner_weight = nn.Parameter(torch.empty(3 * dim, 2 * dim))
        self.bias = nn.Parameter(torch.empty(3 * dim))
        self.forget_left = nn.Parameter(torch.empty(dim, dim))
        self.forget_right = nn.Parameter(torch.empty(dim, dim))
        self.forget_bias = nn.Parameter(torch.empty(dim))

    @staticmethod
    def memory(iou, kept=None):
        """h and c side by side, so that one gather takes both."""
        i, o, u = iou.chunk(3, 1)
        c = torch.sigmoid(i) * torch.tanh(u)
        if kept is not None:
            c = c + kept
        return torch.cat([torch.sigmoid(o) * torch.tanh(c), c], 1)

    def leaf(self, x):
        return self.memory(F.linear(x, self.leaf_weight, self.bias))

    def forward(self, left, right):
        (h1, c1), (h2, c2) = left.chunk(2, 1), right.chunk(2, 1)
        kept = torch.sigmoid(F.linear(h1, self.forget_left, self.forget_bias)) * c1
        kept = kept + torch.sigmoid(F.linear(h2, self.forget_right, self.forget_bias)) * c2
        return self.memory(F.linear(torch.cat([h1, h2], 1), self.inner_weight, self.bias), kept)


class TreeLSTM(nn.Module):
    def __init__(self, data, words, sparse):
        super().__init__()
        self.embed = nn.Embedding(words, treelstm.DIM, sparse=sparse)
        self.cell = BinaryCell(treelstm.DIM)
        self.out = nn.Linear(treelstm.DIM, treelstm.CLASSES, bias=False)
        self.arrays = {id(tree): self.array_of(tree) for tree in data}

    @staticmethod
    def array_of(tree):
        """For every node: height, label, word, number of the left and of the right child."""
        number, rows = {}, []
        for node in tree.postorder():
            number[id(node)] = len(rows)
            if node.is_leaf:
                rows.append((0, node.label, node.word, 0, 0))
            else:
                left, right = number[id(node.left)], number[id(node.right)]
                rows.append((1 + max(rows[left][0], rows[right][0]), node.label, 0, left, right))
        return np.array(rows, np.int64)

    def collate(self, batch):
        trees = [self.arrays[id(tree)] for tree in batch]
        sizes = np.array([len(tree) for tree in trees])
        height, label, word, left, right = np.concatenate(trees).T
        offset = np.repeat(np.cumsum(sizes) - sizes, sizes)
        order = np.argsort(height, kind="stable")
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        levels = np.bincount(height)
        inner = order[levels[0] :]
        children = np.stack([number[(left + offset)[inner]], number[(right + offset)[inner]]])
        return levels.tolist(), {"words": word[order[: levels[0]]], "labels": label[order], "children": children}

    def loss(self, batch, device):
        levels, arrays = self.collate(batch)
        words, labels, children = on_device(device, **arrays)
        states = self.cell.leaf(self.embed(words))
        for level in children.split(levels[1:], 1):
            taken = states.index_select(0, level.reshape(-1))
            states = torch.cat([states, self.cell(*taken.chunk(2, 0))])
        scores = self.out(states[:, : treelstm.DIM])
        return F.cross_entropy(scores, labels, reduction="sum")


# ---- BiLSTM tagger: packed, so that cuDNN computes real tokens alone


def packed_order(real):
    """Tokens of sequences, longest first, step by step: their places in the padded matrix; and how many a step has."""
    places = np.flatnonzero(real.T)  # of the transpose
    step, sequence = np.divmod(places, real.shape[0])
    return sequence * real.shape[1] + step, torch.from_numpy(real.sum(0))


def longest_first(batch):
    return sorted(batch, key=lambda example: -len(example[0]))


class Tagger(nn.Module):
    def __init__(self, words, tags, sparse):
        super().__init__()
        self.embed = nn.Embedding(words, tagger.DIM, sparse=sparse)
        self.lstm = nn.LSTM(tagger.DIM, tagger.DIM, bidirectional=True)
        self.hidden = nn.Linear(2 * tagger.DIM, tagger.HIDDEN, bias=False)
        self.out = nn.Linear(tagger.HIDDEN, tags, bias=False)

    def loss(self, batch, device):
        batch = longest_first(batch)
        words, real = padded([words for words, _ in batch])
        gold, _ = padded([gold for _, gold in batch])
        order, steps = packed_order(real)
        words, gold = on_device(device, words=words.reshape(-1)[order], gold=gold.reshape(-1)[order])
        states, _ = self.lstm(PackedSequence(self.embed(words), steps))
        scores = self.out(torch.tanh(self.hidden(states.data)))
        return F.cross_entropy(scores, gold, reduction="sum")


# ---- LSTM encoder-decoder: the encoder packed, which gives true final states, decoder and attention padded


class Seq2Seq(nn.Module):
    def __init__(self, source_words, target_words, sparse):
        super().__init__()
        embed, dim = seq2seq.EMBED, seq2seq.DIM
        self.embed_source = nn.Embedding(source_words, embed, sparse=sparse)
        self.embed_target = nn.Embedding(target_words, embed, sparse=sparse)
        self.encoder, self.decoder = nn.LSTM(embed, dim), nn.LSTM(embed, dim, batch_first=True)
        self.combine = nn.Linear(2 * dim, dim, bias=False)
        self.out = nn.Linear(dim, target_words)

    def loss(self, batch, device):
        batch = longest_first(batch)
        source, seen = padded([source for source, _ in batch])
        target, real = padded([target for _, target in batch])
        order, steps = packed_order(seen)
        place = np.zeros(seen.size, np.int64)  # padding stands on the first row and is masked
        place[order] = np.arange(len(order))
        arrays = {
            "words": source.reshape(-1)[order],
            "place": place,
            "hidden": ~seen,
            "inputs": target[:, :-1],
            "gold": target[:, 1:][real[:, 1:]],
            "rows": np.flatnonzero(real[:, 1:]),
        }
        words, place, hidden, inputs, gold, rows = on_device(device, **arrays)
        memory, finals = self.encoder(PackedSequence(self.embed_source(words), steps))
        memory = memory.data.index_select(0, place).view(*seen.shape, -1)
        states, _ = self.decoder(self.embed_target(inputs), finals)
        scores = torch.bmm(states, memory.transpose(1, 2)).masked_fill(hidden.bool()[:, None], -math.inf)
        context = torch.bmm(torch.softmax(scores, -1), memory)
        both = torch.cat([states, context], -1).flatten(0, 1).index_select(0, rows)
        return F.cross_entropy(self.out(torch.tanh(self.combine(both))), gold, reduction="sum")


# ---- Transformer: padded and masked


class Transformer(nn.Module):
    def __init__(self, source_words, target_words, sparse, longest=512):
        super().__init__()
        dim, rate = transformer.DIM, transformer.DROPOUT
        self.embed_source = nn.Embedding(source_words, dim, sparse=sparse)
        self.embed_target = nn.Embedding(target_words, dim, sparse=sparse)
        self.dropout = nn.Dropout(rate)
        self.transformer = nn.Transformer(
            dim, transformer.HEADS, transformer.LAYERS, transformer.LAYERS, transformer.INNER, rate, batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.out = nn.Linear(dim, target_words)
        angle = np.arange(longest)[:, None] * np.exp(np.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        sinusoids = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(longest, dim)
        self.register_buffer("positions", torch.from_numpy(sinusoids).float(), persistent=False)
        later = torch.ones(longest, longest, dtype=torch.bool).triu(1)
        self.register_buffer("later", later, persistent=False)

    def rows(self, embedded):
        return self.dropout(embedded * math.sqrt(transformer.DIM) + self.positions[: embedded.shape[1]])

    def loss(self, batch, device):
        source, seen = padded([source for source, _ in batch])
        target, real = padded([target for _, target in batch])
        length = target.shape[1] - 1
        arrays = {
            "words": source,
            "padding": ~seen,
            "inputs": target[:, :-1],
            "gold": target[:, 1:][real[:, 1:]],
            "rows": np.flatnonzero(real[:, 1:]),
        }
        words, padding, inputs, gold, rows = on_device(device, **arrays)
        # A real row of the target sees no padding: that comes later.
        states = self.transformer(
            self.rows(self.embed_source(words)),
            self.rows(self.embed_target(inputs)),
            tgt_mask=self.later[:length, :length],
            src_key_padding_mask=padding.bool(),
            memory_key_padding_mask=padding.bool(),
            tgt_is_causal=True,
        )
        return F.cross_entropy(self.out(states.flatten(0, 1).index_select(0, rows)), gold, reduction="sum")
