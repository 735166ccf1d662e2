"""Translation by LSTMs with attention (Luong et al. 2015), English to German on Multi30k.

    python examples/translate_lstm_attention.py --data FOLDER --epochs 8 --beam 5
    python examples/translate_lstm_attention.py --quick

No padding and no masks: a sentence is one node with a row for every word, and the engine runs the sentences of a
minibatch together, whatever their lengths.
"""

from __future__ import annotations

from typing import NamedTuple

import lazynet as ln

try:
    from . import translation
except ImportError:  # run as a program
    import translation


class State(NamedTuple):
    """Of the decoder: the encoder's rows, and the LSTM's state."""

    memory: ln.Node
    lstm: list


class Translator(ln.Module):
    """Encoder, decoder, attention from the decoder's states to the encoder's, output layer."""

    def __init__(self, source_words: int, target_words: int, embed: int, dim: int, dropout: float) -> None:
        self.embed_source = ln.nn.Embedding(source_words, embed)
        self.embed_target = ln.nn.Embedding(target_words, embed)
        self.encoder, self.decoder = ln.nn.LSTM(embed, dim), ln.nn.LSTM(embed, dim)
        self.attention, self.dropout = ln.nn.BilinearAttention(dim, dim), ln.nn.Dropout(dropout)
        self.combine, self.out = ln.nn.Linear(2 * dim, dim, bias=False), ln.nn.Linear(dim, target_words)

    def start(self, graph: ln.Graph, source: list[int]) -> State:
        """Reads a sentence, a row for every word."""
        return State(*self.encoder(self.dropout(self.embed_source(graph, source))))

    def advance(self, graph: ln.Graph, state: State, words: list[int]) -> tuple[ln.Node, State]:
        """What predicts the word after each of ``words``, and the state after all of them."""
        states, lstm = self.decoder(self.dropout(self.embed_target(graph, words)), state.lstm)
        context = self.attention(states, state.memory)
        hidden = self.dropout(ln.tanh(self.combine(ln.concat([states, context]))))
        return hidden, State(state.memory, lstm)

    def loss(self, graph: ln.Graph, source: list[int], target: list[int]) -> ln.Node:
        """The sum over the target's words. The logits of all words at once are never in memory."""
        hidden, _ = self.advance(graph, self.start(graph, source), target[:-1])
        return ln.linear_cross_entropy(
            hidden, self.out.weight, target[1:], self.out.bias, transpose=True, reduction="sum"
        )

    def step(self, graph: ln.Graph, state: State, token: int) -> tuple[ln.Node, State]:
        """For :mod:`lazynet.decode`: logits of the next word."""
        hidden, state = self.advance(graph, state, [token])
        return self.out(hidden), state


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Returns perplexity on val and BLEU on test."""
    parser = translation.options(__doc__)
    parser.add_argument("--embed", type=int, default=256)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--dropout", type=float, default=0.3)
    args = parser.parse_args(arguments)
    if args.quick:
        args.embed = args.dim = 48
        args.tokens, args.epochs, args.dropout = 100, 30, 0.0
    return translation.run(
        args,
        lambda source, target: Translator(source, target, args.embed, args.dim, args.dropout),
        lambda optimizer: ln.optim.InverseSquareRootLR(optimizer, warmup=20 if args.quick else 400),
    )


if __name__ == "__main__":
    main()
