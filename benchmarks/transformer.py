"""Transformer, 3 + 3 layers of 256, on Multi30k en-de: python -m benchmarks.transformer --data DIR."""

import math

import lazynet as ln
from benchmarks.common import Trainer, arguments, minibatches, parallel, run

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


def main():
    args = arguments(64)
    data, source_words, target_words = parallel(args)
    ln.seed(1)
    model = Translator(source_words, target_words)
    trainer = Trainer(args, model, ln.optim.Adam(model.parameters(), lr=3e-4), model.loss)
    source = minibatches(data, args.batch, key=lambda pair: len(pair[0]), bucketed=args.bucketed)
    tokens = lambda batch: sum(len(source) + len(target) - 1 for source, target in batch)  # noqa: E731
    run("transformer", args, trainer, source, len, tokens, lambda batch: sum(len(target) - 1 for _, target in batch))


if __name__ == "__main__":
    main()
