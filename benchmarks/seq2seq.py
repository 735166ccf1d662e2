"""LSTM encoder-decoder with dot attention on Multi30k en-de: python -m benchmarks.seq2seq --data DIR."""

import lazynet as ln
from benchmarks.common import run_translation

EMBED, DIM = 256, 512


class Translator(ln.Module):
    def __init__(self, source_words, target_words):
        self.embed_source = ln.nn.Embedding(source_words, EMBED)
        self.embed_target = ln.nn.Embedding(target_words, EMBED)
        self.encoder, self.decoder = ln.nn.LSTM(EMBED, DIM), ln.nn.LSTM(EMBED, DIM)
        self.attention = ln.nn.DotAttention()
        self.combine = ln.nn.Linear(2 * DIM, DIM, bias=False)
        self.out = ln.nn.Linear(DIM, target_words)

    def loss(self, graph, batch):
        losses = []
        for source, target in batch:
            memory, finals = self.encoder(self.embed_source(graph, source))
            states, _ = self.decoder(self.embed_target(graph, target[:-1]), finals)
            context = self.attention(states, memory)
            hidden = ln.tanh(self.combine(ln.concat([states, context])))
            losses.append(
                ln.linear_cross_entropy(
                    hidden, self.out.weight, target[1:], self.out.bias, transpose=True, reduction="sum"
                )
            )
        return ln.sum(losses)


if __name__ == "__main__":
    run_translation("seq2seq", Translator, 1e-3)
