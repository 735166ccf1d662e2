"""A word-level language model: an LSTM or a causal Transformer, and a few sentences that it makes up.

The table of word vectors is also the output layer (Press and Wolf 2017, Using the Output Embedding to Improve Language
Models), and the scores of all words for all places never exist at once: `linear_cross_entropy` makes them block by block.
The LSTM is regularised as by Zaremba et al. 2014; the Transformer (Vaswani et al. 2017) has its norms first and rotary
positions (Su et al. 2021), and with --window a word sees so many before it (Beltagy et al. 2020).

    python examples/language_model.py --quick
    python examples/language_model.py --data DIR --save lm.safetensors
    python examples/language_model.py --data DIR --transformer --layers 2 --epochs 4 --dropout 0.2

DIR holds train.en, val.en and test_2016.en, such as Multi30k's, tokenised and a sentence a line. Words that are seen once
count as <unk>, predicted like any other word. --quick makes up sentences. On Multi30k the LSTM reaches a perplexity
of 29.1 on val.en and 29.4 on test_2016.en, the Transformer 25.8 and 25.7, each after five minutes on one core.
"""

import argparse
import random
from pathlib import Path

import numpy as np
from tqdm import tqdm

import lazynet as ln
from lazynet.data import Vocabulary, read_lines, token_batches

END = "</s>"  # stands before the first word too


class LanguageModel(ln.Module):
    """Predicts every word from those before it."""

    def __init__(self, words, options):
        self.embed = ln.nn.Embedding(words, options.dim, sparse=False)
        self.embed.weight.value *= options.dim**-0.5  # what is good for an output layer
        self.bias = ln.Parameter((words,))
        self.dropout = ln.nn.Dropout(options.dropout)
        self.transformer, self.window = options.transformer, options.window
        if options.transformer:
            layer = ln.nn.TransformerEncoderLayer(
                options.dim, options.heads, 4 * options.dim, options.dropout, "gelu", norm_first=True, rotary_base=1e4
            )
            self.encoder = ln.nn.TransformerEncoder(layer, options.layers, ln.nn.LayerNorm(options.dim))
        else:
            self.encoder = ln.nn.LSTM(options.dim, options.dim, options.layers, dropout=options.dropout)

    def states(self, graph, ids):
        """What is known of the next word after each word, ``(words, dim)``."""
        x = self.dropout(self.embed(graph, ids))
        if self.transformer:
            return self.encoder(x, is_causal=True, window=self.window)
        return self.dropout(self.encoder(x)[0])

    def loss(self, graph, ids):
        """-log p of all words but the first, summed."""
        states = self.states(graph, ids[:-1])
        return ln.linear_cross_entropy(states, self.embed.weight, ids[1:], self.bias, transpose=True, reduction="sum")

    def scores(self, graph, ids):
        """A score of every word to come next, ``(1, words)``."""
        return ln.linear(self.states(graph, ids)[-1], self.embed.weight, self.bias, transpose=True)


def train_epoch(model, optimizer, schedule, graph, sentences, options, epoch):
    """One pass over the sentences; returns the perplexity."""
    perplexity = ln.metrics.Perplexity()
    with tqdm(total=len(sentences), desc=f"epoch {epoch}", unit=" sentences", leave=False) as progress:
        for batch in token_batches(sentences, options.batch, length=len, seed=options.seed + epoch):
            tokens = sum(len(ids) - 1 for ids in batch)
            with graph:
                loss = ln.sum([model.loss(graph, ids) for ids in batch])
                graph.backward(loss * (1 / tokens))
                perplexity.update(loss.item(), tokens)
            optimizer.step(max_norm=1.0)
            schedule.step()
            progress.set_postfix(perplexity=f"{perplexity.value:.2f}", refresh=False)
            progress.update(len(batch))
    return perplexity.value


def evaluate(model, sentences):
    """Perplexity of a word, the end of the sentence included."""
    graph, perplexity = ln.Graph(train=False), ln.metrics.Perplexity()
    for batch in token_batches(sentences, 4000, length=len, shuffle=False):
        with graph:
            loss = ln.sum([model.loss(graph, ids) for ids in batch])
            perplexity.update(loss.item(), sum(len(ids) - 1 for ids in batch))
    return perplexity.value


def sample(model, words, count, options):
    """Sentences drawn word by word, all of them side by side."""
    rng, graph = np.random.default_rng(options.seed), ln.Graph(train=False)
    end, unknown = words.encode([END, "<unk>"])
    sentences = [[end] for _ in range(count)]
    for _ in range(40):
        open_ones = [ids for ids in sentences if len(ids) == 1 or ids[-1] != end]
        with graph:
            scores = [model.scores(graph, ids) for ids in open_ones]
            graph.forward(*scores)
            for ids, each in zip(open_ones, scores, strict=True):
                # The largest of scores with Gumbel noise is a draw from their softmax, here of temperature 0.8.
                noisy = each.value[0] / 0.8 + rng.gumbel(size=len(words))
                noisy[unknown] = -np.inf
                ids.append(int(noisy.argmax()))
    return [" ".join(word for word in words.decode(ids) if word != END) for ids in sentences]


def made_up(count, seed):
    """Sentences in which verbs agree with their subjects."""
    rng = random.Random(seed)
    animals, verbs = ["dog", "cat", "bird", "cow", "horse"], ["see", "hear", "like", "follow"]
    lines = []
    for _ in range(count):
        one = rng.random() < 0.5
        subject = f"one {rng.choice(animals)}" if one else f"many {rng.choice(animals)}s"
        lines.append(f"{subject} near the {rng.choice(animals)} {rng.choice(verbs)}{'s' if one else ''} it .")
    return lines


def parse(arguments):
    """The options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="DIR", help="folder of train.en, val.en and test_2016.en")
    source.add_argument("--quick", action="store_true", help="a few hundred made-up sentences, to see that it runs")
    parser.add_argument("--transformer", action="store_true", help="a causal Transformer, not an LSTM")
    parser.add_argument(
        "--window", type=int, help="words before it that a word sees, in every layer of the Transformer"
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, help="words in a minibatch: 1000, with --quick 200")
    parser.add_argument("--dim", type=int, default=192, help="size of word vectors and states")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=ln.num_threads())
    parser.add_argument("--save", metavar="FILE", help="checkpoint to write after every epoch")
    parser.add_argument("--resume", metavar="FILE", help="checkpoint to go on from")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Trains, and returns the figures of the best epoch."""
    options = parse(arguments)
    ln.set_num_threads(options.threads)
    ln.seed(options.seed)
    options.batch = options.batch or (200 if options.quick else 1000)
    if options.quick:
        lines = [made_up(count, seed) for count, seed in ((600, 1), (100, 2), (100, 3))]
    else:
        lines = [read_lines(options.data / name) for name in ("train.en", "val.en", "test_2016.en")]
    words = Vocabulary.build((line.split() for line in lines[0]), min_count=2, specials=("<unk>", END))
    train, dev, test = ([words.encode([END, *line.split(), END]) for line in part] for part in lines)
    model = LanguageModel(len(words), options)
    optimizer = ln.optim.Adam(model.parameters(), options.lr)
    steps = options.epochs * len(list(token_batches(train, options.batch, length=len)))
    schedule = ln.optim.CosineLR(optimizer, steps, warmup=steps // 20)
    best = ln.optim.EarlyStopping(patience=options.epochs)
    graph = ln.Graph(seed=options.seed)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "graph": graph, "best": best}
    done = ln.load(options.resume, **parts).step if options.resume else 0
    figures = {"vocabulary": len(words), "perplexities": []}
    for epoch in range(done + 1, options.epochs + 1):
        figures["perplexities"].append(train_epoch(model, optimizer, schedule, graph, train, options, epoch))
        perplexity = evaluate(model, dev)
        best.update(perplexity, model)
        print(f"epoch {epoch}: perplexity {figures['perplexities'][-1]:.2f}, dev {perplexity:.2f}", flush=True)
        if options.save:
            ln.save(options.save, **parts, step=epoch)
    best.restore(model)
    figures |= {"dev_perplexity": best.best, "test_perplexity": evaluate(model, test)}
    print(f"best model: perplexity {figures['dev_perplexity']:.2f} on dev, {figures['test_perplexity']:.2f} on test")
    figures["samples"] = sample(model, words, 5, options)
    print(*figures["samples"], sep="\n")
    return figures


if __name__ == "__main__":
    main()
