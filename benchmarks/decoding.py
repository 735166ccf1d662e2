"""Beam search one sentence at a time and together, LSTM with dot attention on random data: python -m benchmarks.decoding."""

import argparse
import json
import time
from statistics import median

import numpy as np

import lazynet as ln

BEGIN, END = 0, 1


class Translator(ln.Module):
    """LSTM encoder and decoder, dot attention (Luong et al. 2015)."""

    def __init__(self, words, embedding, hidden):
        self.source, self.target = ln.nn.Embedding(words, embedding), ln.nn.Embedding(words, embedding)
        self.encoder = ln.nn.LSTM(embedding, hidden)
        self.decoder = ln.nn.LSTMCell(embedding, hidden)
        self.combine = ln.nn.Linear(2 * hidden, hidden, bias=False)
        self.out = ln.nn.Linear(hidden, words)

    def start(self, graph, source):
        outputs, finals = self.encoder(self.source(graph, source))
        return outputs, finals[-1]

    def step(self, graph, state, token):
        encoded, before = state
        after = self.decoder(self.target(graph, token), before)
        context = ln.attention(after.h, encoded, encoded, scale=1.0)
        return self.out(ln.tanh(self.combine(ln.concat([after.h, context])))), (encoded, after)


def timed(function, *arguments):
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--words", type=int, default=10000)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    ln.set_num_threads(args.threads)
    ln.seed(0)
    model = Translator(args.words, args.hidden // 2, args.hidden)
    rng = np.random.default_rng(0)
    sources = [rng.integers(2, args.words, length).tolist() for length in rng.integers(5, 31, args.sentences)]
    graph = ln.Graph(train=False)

    def decode(some):
        # A model without training does not end, so each output is as long as its source.
        return ln.decode.beam_search(model, some, beam=args.beam, begin=BEGIN, end=END, max_length=len, graph=graph)

    together, alone = [], []
    decode(sources)
    for _ in range(args.rounds):
        seconds, batched = timed(decode, sources)
        together.append(args.sentences / seconds)
        seconds, single = timed(lambda: [decode([source])[0] for source in sources])
        alone.append(args.sentences / seconds)
        assert [found[0].tokens for found in batched] == [found[0].tokens for found in single]
    row = {
        "task": "decoding",
        "beam": args.beam,
        "sentences": args.sentences,
        "threads": args.threads,
        "alone_per_s": round(median(alone), 1),
        "together_per_s": round(median(together), 1),
        "ratio": round(median(t / a for t, a in zip(together, alone, strict=True)), 2),
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
