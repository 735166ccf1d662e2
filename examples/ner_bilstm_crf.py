"""Named entities with a BiLSTM-CRF that reads words and their letters.

The model of Ma and Hovy 2016 (End-to-end Sequence Labeling via Bi-directional LSTM-CNNs-CRF), without pretrained word
vectors: a word is its vector and what a convolution finds in its letters, a bidirectional LSTM reads the sentence, and a
conditional random field chooses the tags together. Words and sentences of any lengths are batched without padding.

    python examples/ner_bilstm_crf.py --quick
    python examples/ner_bilstm_crf.py --data DIR --save ner.safetensors

DIR holds train.txt and dev.txt, such as WikiNER's, a sentence a line: William|I-PER Godwin|I-PER wrote|O. The last tenth
of train.txt chooses the epoch, and dev.txt is only read at the end. --quick makes up sentences. Of the first 10,000
sentences of WikiNER the tenth reaches an F1 of 74.2 %, and dev.txt 57.4 %: its articles are of other kinds, and 81 % of
its names, not 64 %, are new. That takes 160 seconds on one core.
"""

import argparse
import random
from pathlib import Path

from tqdm import tqdm

import lazynet as ln
from lazynet.data import Vocabulary, minibatches, read_tagged


class Tagger(ln.Module):
    """Words and letters, BiLSTM, CRF."""

    def __init__(self, words, letters, tags, options):
        self.words, self.letters, self.tags = words, letters, tags
        self.embed = ln.nn.Embedding(len(words), options.embedding)
        self.embed.weight.value *= 0.1
        self.embed_letter = ln.nn.Embedding(len(letters), 30)
        self.spell = ln.nn.ConvolutionalEncoder(30, options.filters, widths=[3])
        self.lstm = ln.nn.LSTM(options.embedding + options.filters, options.hidden, bidirectional=True)
        self.out = ln.nn.Linear(2 * options.hidden, len(tags))
        self.crf = ln.nn.CRF(len(tags))
        self.dropout, self.word_dropout = ln.nn.Dropout(options.dropout), ln.nn.Dropout(options.word_dropout)

    def emissions(self, graph, sentences):
        """For each sentence a score of every tag for every word, ``(words, tags)``."""
        # A word that comes again in the minibatch is spelled once.
        spelled = {word: None for sentence in sentences for word in sentence}
        for word in spelled:
            spelled[word] = self.spell(self.dropout(self.embed_letter(graph, self.letters.encode(list(word)))))
        for sentence in sentences:
            known = self.embed(graph, self.words.encode(map(str.lower, sentence)))
            # Whole words are hidden, so that the model learns to read letters and neighbours.
            known = known * self.word_dropout(graph.constant(1.0, known.rows, 1))
            read = ln.concat([known, ln.concat([spelled[word] for word in sentence], axis=0)])
            states, _ = self.lstm(self.dropout(read))
            yield self.out(self.dropout(states))

    def loss(self, graph, batch):
        """-log p(tags), averaged over sentences."""
        emissions = self.emissions(graph, [sentence for sentence, _ in batch])
        return ln.average(
            [self.crf.loss(x, self.tags.encode(gold)) for x, (_, gold) in zip(emissions, batch, strict=True)]
        )

    def predict(self, graph, sentences):
        """The best tags of every sentence."""
        paths = [self.crf.decode(x) for x in self.emissions(graph, sentences)]
        graph.forward(*paths)
        return [self.tags.decode(path.value.ravel().astype(int)) for path in paths]


def train_epoch(model, optimizer, graph, sentences, options, epoch):
    """One pass over the sentences; returns the mean loss of one."""
    mean = ln.metrics.Mean()
    with tqdm(total=len(sentences), desc=f"epoch {epoch}", unit=" sentences", leave=False) as progress:
        for batch in minibatches(sentences, options.batch, seed=options.seed + epoch):
            with graph:
                loss = model.loss(graph, batch)
                graph.backward(loss)
                mean.update(loss.item(), len(batch))
            optimizer.step(max_norm=5.0)
            progress.set_postfix(loss=f"{mean.value:.3f}", refresh=False)
            progress.update(len(batch))
    return mean.value


def evaluate(model, sentences):
    """F1 of exact spans."""
    graph, f1 = ln.Graph(train=False), ln.metrics.SpanF1()
    for batch in minibatches(sentences, 100, shuffle=False):
        with graph:
            f1.update(model.predict(graph, [sentence for sentence, _ in batch]), [tags for _, tags in batch])
    return f1


def made_up(count, seed):
    """Sentences about people and places, whose names are new but spelled alike."""
    rng = random.Random(seed)
    sentences = []
    for _ in range(count):
        name, place = (rng.choice("BDKLMT") + rng.choice("aeiou") + rng.choice("lnr") for _ in range(2))
        person = [(name + "a", "I-PER"), (name + "son", "I-PER")][rng.randrange(2) :]
        town = [("New", "I-LOC")] * rng.randrange(2) + [(place + "ville", "I-LOC")]
        said = [(word, "O") for word in rng.choice(["lives in", "will never see", "wrote about"]).split()]
        words, tags = zip(*rng.choice([person + said + town, [*town, ("amazes", "O"), *person]]), strict=True)
        sentences.append((list(words), list(tags)))
    return sentences


def parse(arguments):
    """The options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="DIR", help="folder of train.txt and dev.txt")
    source.add_argument("--quick", action="store_true", help="a few hundred made-up sentences, to see that it runs")
    parser.add_argument("--epochs", type=int, default=11)
    parser.add_argument("--patience", type=int, default=3, help="epochs without improvement before it stops")
    parser.add_argument("--batch", type=int, default=20, help="sentences in a minibatch")
    parser.add_argument("--embedding", type=int, default=100, help="size of word vectors")
    parser.add_argument("--filters", type=int, default=100, help="convolutions over letters")
    parser.add_argument("--hidden", type=int, default=128, help="size of each direction's states")
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--word-dropout", type=float, default=0.1, help="how often a word's vector is hidden")
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
    if options.quick:
        train, dev, test = made_up(200, 1), made_up(50, 2), made_up(50, 3)
    else:
        train, test = (read_tagged(options.data / f"{name}.txt") for name in ("train", "dev"))
        train, dev = train[: -(len(train) // 10)], train[-(len(train) // 10) :]
    words = Vocabulary.build(([word.lower() for word in sentence] for sentence, _ in train), min_count=2)
    letters = Vocabulary.build(list(word) for sentence, _ in train for word in sentence)
    tags = Vocabulary.build((tags for _, tags in train), specials=(), unknown=None)
    model = Tagger(words, letters, tags, options)
    optimizer = ln.optim.Adam(model.parameters(), options.lr)
    schedule = ln.optim.StepLR(optimizer, step_size=1, gamma=0.9)
    stopping = ln.optim.EarlyStopping(options.patience, mode="max")
    graph = ln.Graph(seed=options.seed)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "graph": graph, "stopping": stopping}
    done = ln.load(options.resume, **parts).step if options.resume else 0
    figures = {"losses": []}
    for epoch in range(done + 1, options.epochs + 1):
        if stopping.stop:
            break
        figures["losses"].append(train_epoch(model, optimizer, graph, train, options, epoch))
        schedule.step()
        f1 = evaluate(model, dev).value
        stopping.update(f1, model)
        print(f"epoch {epoch}: loss {figures['losses'][-1]:.3f}, dev F1 {f1:.1%}", flush=True)
        if options.save:
            ln.save(options.save, **parts, step=epoch)
    stopping.restore(model)
    f1 = evaluate(model, test)
    for name, score in [*f1.by_type.items(), ("all", f1.overall)]:
        print(f"{name:5} precision {score.precision:.1%}, recall {score.recall:.1%}, F1 {score.f1:.1%}")
    return figures | {"dev_f1": stopping.best, "test_f1": f1.value}


if __name__ == "__main__":
    main()
