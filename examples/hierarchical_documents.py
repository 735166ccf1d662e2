"""Hierarchical attention: words make sentences, sentences make a document, and attention says which of them matter.

After Yang et al. 2016, "Hierarchical Attention Networks for Document Classification": a bidirectional GRU and attention
pooling over the words of each sentence, the same over its sentences, and a classifier. The model is written for one
document; all sentences of all documents of a minibatch run together, however many words and sentences there are.

    python examples/hierarchical_documents.py --quick                    # generated documents, a few seconds
    python examples/hierarchical_documents.py --data FOLDER --epochs 10  # genres of English EWT

In generated documents every sentence has a topic, and a few words on it among others. The class is the topic of the one
sentence that also holds the word "verdict"; a bag of words is right less than half of the time. How often attention is
highest at that sentence is reported.

With FOLDER, which holds en_ewt-ud-dev.conllu and en_ewt-ud-test.conllu, the classes are the five genres of the corpus,
named at the head of the documents' ids: weblog, newsgroup, email, reviews and answers. It trains on the 318 documents
of dev and is tested on the 316 of test, of which it gets 88 to 89 % right; 58 % are reviews.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

import lazynet as ln
from lazynet.data import Document, Vocabulary, minibatches, read_conllu


class Attended(NamedTuple):
    """One row of many, and the scores by which attention weighed them."""

    vector: ln.Node
    scores: ln.Node


class Level(ln.Module):
    """A bidirectional GRU and attention with a learned context: rows to one row."""

    def __init__(self, columns: int, dim: int) -> None:
        self.gru = ln.nn.GRU(columns, dim, bidirectional=True)
        self.hidden, self.context = ln.nn.Linear(2 * dim, 2 * dim), ln.nn.Linear(2 * dim, 1, bias=False)

    def forward(self, x: ln.Node) -> Attended:
        """``(rows, columns)`` to ``(1, 2 dim)``."""
        states, _ = self.gru(x)
        scores = self.context(ln.tanh(self.hidden(states)))
        return Attended(ln.attention_pool(states, scores), scores)


class Classifier(ln.Module):
    """Scores of a document's classes."""

    def __init__(self, words: Vocabulary, classes: Vocabulary, dim: int) -> None:
        self.words, self.classes = words, classes
        self.embed, self.dropout = ln.nn.Embedding(len(words), dim), ln.nn.Dropout(0.3)
        self.words_to_sentence = Level(dim, dim // 2)
        self.encode = ln.nn.HierarchicalEncoder(self.sentence, Level(dim, dim // 2))
        self.out = ln.nn.Linear(dim, len(classes))

    def sentence(self, graph: ln.Graph, tokens: list[str]) -> ln.Node:
        """A row for the sentence."""
        return self.words_to_sentence(self.dropout(self.embed(graph, self.words.encode(tokens)))).vector

    def forward(self, graph: ln.Graph, document: Document) -> tuple[ln.Node, ln.Node]:
        """Scores of the classes, and attention's scores of the sentences."""
        vector, attention = self.encode(graph, document.sentences)
        return self.out(self.dropout(vector)), attention


def generate(count: int, seed: int) -> list[Document]:
    """Documents of 2 to 8 sentences of 4 to 12 words on 5 topics."""
    rng, documents = random.Random(seed), []
    for _ in range(count):
        topics = [rng.randrange(5) for _ in range(rng.randint(2, 8))]
        sentences = []
        for topic in topics:
            tokens = [f"any{rng.randrange(50)}" for _ in range(rng.randint(1, 9))]
            tokens += [f"topic{topic}-{rng.randrange(10)}" for _ in range(3)]
            rng.shuffle(tokens)
            sentences.append(tokens)
        chosen = rng.randrange(len(topics))
        sentences[chosen][rng.randrange(len(sentences[chosen]))] = "verdict"
        documents.append(Document(f"topic{topics[chosen]}", sentences))
    return documents


def read_genres(path: Path) -> list[Document]:
    """Documents of a part of EWT, labelled with their genres."""
    documents: list[Document] = []
    for sentence in read_conllu(path):
        if "newdoc id" in sentence.metadata:
            documents.append(Document(sentence.metadata["newdoc id"].partition("-")[0], []))
        documents[-1].sentences.append([form.lower() for form in sentence.forms])
    return documents


def evaluate(model: Classifier, documents: list[Document], batch: int) -> tuple[float, float]:
    """Accuracy, and how often attention is highest at the sentence with the verdict, where there are verdicts."""
    graph, accuracy, attended = ln.Graph(train=False), ln.metrics.Accuracy(), ln.metrics.Mean()
    for group in minibatches(documents, batch, shuffle=False):
        with graph:
            found = [model(graph, document) for document in group]
            graph.forward(*[node for pair in found for node in pair])
            for document, (scores, attention) in zip(group, found, strict=True):
                accuracy.update(scores.value, model.classes[document.label])
                if any("verdict" in sentence for sentence in document.sentences):
                    attended.update("verdict" in document.sentences[attention.value.argmax()])
    return accuracy.value, attended.value


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Trains, tests after every epoch, and returns the last figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the two files; without it documents are generated")
    parser.add_argument("--quick", action="store_true", help="a few seconds on generated documents")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8, help="documents in a minibatch")
    parser.add_argument("--dim", type=int, help="size of words, sentences and documents: 96, or 32 with --quick")
    parser.add_argument("--lr", type=float, help="learning rate of Adam: 0.002, or 0.005 with --quick")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=ln.num_threads())
    parser.add_argument("--save", metavar="FILE", help="where the model is kept")
    options = parser.parse_args(arguments)
    ln.seed(options.seed)
    ln.set_num_threads(options.threads)
    if options.data is None or options.quick:
        train, test = generate(400 if options.quick else 2000, seed=1), generate(200, seed=2)
    else:
        train, test = (read_genres(options.data / f"en_ewt-ud-{part}.conllu") for part in ("dev", "test"))
    words = Vocabulary.build((tokens for document in train for tokens in document.sentences), min_count=2)
    classes = Vocabulary.build(([document.label] for document in train), specials=(), unknown=None)
    model = Classifier(words, classes, options.dim or (32 if options.quick else 96))
    optimizer = ln.optim.Adam(model.parameters(), lr=options.lr or (5e-3 if options.quick else 2e-3))
    sentences = sum(len(document.sentences) for document in train)
    common = max(Counter(document.label for document in test).values()) / len(test)
    print(f"{len(train):,} documents, {sentences:,} sentences; the most common of {len(classes)} classes: {common:.1%}")
    graph, figures = ln.Graph(seed=options.seed), {"constant": common}
    for epoch in range(1, 1 + options.epochs):
        start, mean = time.perf_counter(), ln.metrics.Mean()
        with tqdm(total=sentences, desc=f"epoch {epoch}", unit=" sentences", leave=False) as progress:
            for group in minibatches(train, options.batch, seed=epoch):
                with graph:
                    losses = [ln.cross_entropy(model(graph, each)[0], classes[each.label]) for each in group]
                    loss = ln.average(losses)
                    graph.backward(loss)
                    mean.update(loss.item(), len(group))
                optimizer.step(max_norm=5.0)
                progress.set_postfix(loss=f"{mean.value:.3f}", refresh=False)
                progress.update(sum(len(each.sentences) for each in group))
        rate = sentences / (time.perf_counter() - start)
        accuracy, attended = evaluate(model.eval(), test, options.batch)
        model.train()
        figures.update(accuracy=accuracy, attended=attended, loss=mean.value)
        at_verdict = "" if math.isnan(attended) else f", attention at the verdict {attended:.1%}"
        print(
            f"epoch {epoch}: loss {mean.value:.3f}, {rate:,.0f} sentences/s, accuracy {accuracy:.1%}{at_verdict}",
            flush=True,
        )
    if options.save:
        ln.save(options.save, model=model, words=words.tokens, classes=classes.tokens)
    return figures


if __name__ == "__main__":
    main()
