"""Transformer, 3 + 3 layers of 256, on Multi30k en-de: python -m benchmarks.transformer --data DIR."""

import math

import lazynet as ln
from benchmarks.common import run_translation

DIM, HEADS, LAYERS, INNER, DROPOUT = 256, 4, 3, 1024, 0.1


class Translator(ln.Module):
    def __init__(self, source_words, target_words):
        self.embed_source = ln.nn.Embedding(source_words, DIM)
        self.embed_target = ln.nn.Embedding(target_words, DIM)
        self.positions, self.dropout = ln.nn.SinusoidalPositions(), ln.nn.Dropout(DROPOUT)
        self.transformer = ln.nn.Transformer(DIM, HEADS, LAYERS, LAYERS, INNER, DROPOUT, norm_first=True)
        self.out = ln.nn.Linear(DIM, target_words)

    def rows(self, embedded):
        return self.dropout(self.positions(embedded * math.sqrt(DIM)))

    def loss(self, graph, batch):
        losses = []
        for source, target in batch:
            hidden = self.transformer(
                self.rows(self.embed_source(graph, source)), self.rows(self.embed_target(graph, target[:-1]))
            )
            losses.append(
                ln.linear_cross_entropy(
                    hidden, self.out.weight, target[1:], self.out.bias, transpose=True, reduction="sum"
                )
            )
        return ln.sum(losses)


if __name__ == "__main__":
    run_translation("transformer", Translator, 3e-4)
