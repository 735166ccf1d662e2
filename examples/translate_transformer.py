"""Translation by a Transformer (Vaswani et al. 2017), English to German on Multi30k.

    python examples/translate_transformer.py --data FOLDER --epochs 10 --beam 5
    python examples/translate_transformer.py --quick

No padding and no masks: a sentence is one ``(words, dim)`` node, attention knows its length, and the engine runs the
sentences of a minibatch together.
"""

from __future__ import annotations

import math

import lazynet as ln

try:
    from . import translation
except ImportError:  # run as a program
    import translation


class Translator(ln.Module):
    """Embeddings with sinusoidal positions, encoder and decoder, output layer."""

    def __init__(self, source_words: int, target_words: int, dim: int, heads: int, layers: int, dropout: float) -> None:
        self.embed_source = ln.nn.Embedding(source_words, dim)
        self.embed_target = ln.nn.Embedding(target_words, dim)
        for embedding in (self.embed_source, self.embed_target):
            embedding.weight.value *= dim**-0.5
        self.scale, self.smoothing = math.sqrt(dim), 0.1
        self.positions, self.dropout = ln.nn.SinusoidalPositions(), ln.nn.Dropout(dropout)
        self.transformer = ln.nn.Transformer(dim, heads, layers, layers, 4 * dim, dropout, norm_first=True)
        self.out = ln.nn.Linear(dim, target_words)

    def rows(self, embedded: ln.Node, start: int = 0) -> ln.Node:
        """What goes into the first layer."""
        return self.dropout(self.positions(embedded * self.scale, start))

    def loss(self, graph: ln.Graph, source: list[int], target: list[int]) -> ln.Node:
        """The sum over the target's words. The logits of all words at once are never in memory."""
        hidden = self.transformer(
            self.rows(self.embed_source(graph, source)), self.rows(self.embed_target(graph, target[:-1]))
        )
        return ln.linear_cross_entropy(
            hidden, self.out.weight, target[1:], self.out.bias, transpose=True, reduction="sum",
            label_smoothing=self.smoothing if graph.training else 0.0,
        )  # fmt: skip

    def start(self, graph: ln.Graph, source: list[int]) -> tuple[ln.nn.DecoderState, int]:
        """For :mod:`lazynet.decode`: the decoder's state before the first word, and the position of that."""
        return self.transformer.decoder.start(self.transformer.encoder(self.rows(self.embed_source(graph, source)))), 0

    def step(self, graph: ln.Graph, state: tuple[ln.nn.DecoderState, int], token: int) -> tuple[ln.Node, tuple]:
        """Logits of the next word; keys and values of the words before are kept in the state."""
        before, position = state
        row = self.rows(self.embed_target(graph, [token]), position)
        hidden, after = self.transformer.decoder.extend(row, before)
        return self.out(hidden), (after, position + 1)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Returns perplexity on val and BLEU on test."""
    parser = translation.options(__doc__, epochs=10)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.2)
    args = parser.parse_args(arguments)
    if args.quick:
        args.dim, args.heads, args.layers, args.dropout = 32, 2, 1, 0.0
        args.tokens, args.epochs = 100, 30
    return translation.run(
        args,
        lambda source, target: Translator(source, target, args.dim, args.heads, args.layers, args.dropout),
        lambda optimizer: ln.optim.InverseSquareRootLR(optimizer, warmup=100 if args.quick else 1000),
    )


if __name__ == "__main__":
    main()
