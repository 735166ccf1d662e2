"""BiLSTM tagger on WikiNER: python -m benchmarks.tagger --data DIR."""

import lazynet as ln
from benchmarks.common import Trainer, arguments, minibatches, run, tags

DIM, HIDDEN = 128, 64


class Tagger(ln.Module):
    def __init__(self, words, tags):
        self.embed = ln.nn.Embedding(words, DIM)
        self.lstm = ln.nn.LSTM(DIM, DIM, bidirectional=True)
        self.hidden = ln.nn.Linear(2 * DIM, HIDDEN, bias=False)
        self.out = ln.nn.Linear(HIDDEN, tags, bias=False)

    def loss(self, graph, batch):
        losses = []
        for words, gold in batch:
            states, _ = self.lstm(self.embed(graph, words))
            scores = self.out(ln.tanh(self.hidden(states)))
            losses.append(ln.cross_entropy(scores, gold, reduction="sum"))
        return ln.sum(losses)


def main():
    args = arguments(50)
    data, words, tag_count = tags(args)
    ln.seed(1)
    model = Tagger(words, tag_count)
    trainer = Trainer(args, model, ln.optim.Adam(model.parameters(), lr=1e-3), model.loss)
    source = minibatches(data, args.batch, lambda s: len(s[0]), args.bucketed)

    def tokens(batch):
        return sum(len(words) for words, _ in batch)

    run("tagger", args, trainer, source, len, tokens, tokens)


if __name__ == "__main__":
    main()
