"""A stack-LSTM dependency parser: transitions of many sentences at once, each with a history of its own.

After Dyer et al. 2015, "Transition-Based Dependency Parsing with Stack Long Short-Term Memory": an LSTM over the stack,
one over the actions so far, and arcs that compose head and dependent into one vector. As in Kiperwasser and Goldberg
2016, words come from a BiLSTM, of forms and gold UPOS tags; the first word of the buffer stands for the buffer.

The parser is written for one sentence. Training follows the static oracle: sentences of a minibatch have different
actions, and all their losses are one graph. Parsing runs in lock step: one forward a step for all sentences.

    python examples/transition_parser.py --quick                    # generated sentences, a few seconds
    python examples/transition_parser.py --data FOLDER --epochs 10  # Universal Dependencies, English EWT

FOLDER holds en_ewt-ud-dev.conllu, which it trains on, and en_ewt-ud-test.conllu, which it is tested on. Dev is much
smaller than the training part, so figures are not those of papers: a UAS of 81 % and an LAS of 78 %. Punctuation
counts; subtypes of relations (as in nmod:poss) do not.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

import lazynet as ln
from lazynet.data import ArcStandard, Sentence, Transition, Vocabulary, Word, is_projective, minibatches, read_conllu


class Parser(ln.Module):
    """Scores the next action of a sentence: SHIFT, or an arc with its relation such as LEFT-nsubj."""

    def __init__(self, sentences: list[Sentence], actions: list[list[str]], dim: int) -> None:
        forms = [sentence.forms for sentence in sentences]
        self.words, self.first_rare = Vocabulary.build(forms), len(Vocabulary.build(forms, min_count=2))
        self.tags = Vocabulary.build([word.upos for word in sentence.words] for sentence in sentences)
        self.actions = Vocabulary.build(actions, specials=(), unknown=None)
        self.made_by = np.array([[action.startswith(each.name) for action in self.actions] for each in Transition])
        small = dim // 4
        self.embed_word, self.embed_tag = ln.nn.Embedding(len(self.words), dim), ln.nn.Embedding(len(self.tags), small)
        self.embed_action = ln.nn.Embedding(len(self.actions), small)
        self.encoder = ln.nn.LSTM(dim + small, dim // 2, bidirectional=True)
        self.stack, self.history = ln.nn.StackLSTM(dim, dim), ln.nn.StackLSTM(small, small)
        self.composed = ln.nn.Linear(2 * dim + small, dim)
        self.hidden = ln.nn.Linear(2 * dim + small, dim)
        self.out, self.dropout = ln.nn.Linear(dim, len(self.actions)), ln.nn.Dropout(0.3)

    def encode(self, graph: ln.Graph, sentence: Sentence) -> ln.Node:
        """A row a word, and one of zeros for the empty buffer."""
        words = self.words.encode(sentence.forms)
        if self.training:  # words seen once are unknown half of the time
            words = [0 if word >= self.first_rare and random.random() < 0.5 else word for word in words]
        tags = self.tags.encode(word.upos for word in sentence.words)
        x = ln.concat([self.embed_word(graph, words), self.embed_tag(graph, tags)])
        rows, _ = self.encoder(self.dropout(x))
        return ln.concat([rows, graph.constant(0.0, 1, rows.cols)], axis=0)

    @ln.cell
    def compose(self, head: ln.Node, dependent: ln.Node, action: ln.Node) -> ln.Node:
        """The vector of a head with one dependent more."""
        return ln.tanh(self.composed(ln.concat([head, dependent, action])))

    def scores(self, features: list[ln.Node]) -> ln.Node:
        """A row of scores for the features of every state."""
        return self.out(self.dropout(ln.relu(self.hidden(ln.concat(features, axis=0)))))

    def loss(self, graph: ln.Graph, sentence: Sentence, actions: list[str]) -> ln.Node:
        """Summed over the actions of the oracle."""
        state, features = State(self, graph, sentence), []
        for action in actions:
            features.append(state.features())
            state.apply(action)
        return ln.cross_entropy(self.scores(features), self.actions.encode(actions), reduction="sum")

    def parse(self, graph: ln.Graph, sentences: list[Sentence]) -> list[State]:
        """Greedy: at every step the best legal action of each unfinished sentence."""
        states = [State(self, graph, sentence) for sentence in sentences]
        while unfinished := [state for state in states if not state.tree.is_final]:
            scores = self.scores([state.features() for state in unfinished]).value  # one forward for all
            for state, row in zip(unfinished, scores, strict=True):
                legal = self.made_by[state.tree.legal()].any(axis=0)
                state.apply(self.actions.tokens[np.where(legal, row, -np.inf).argmax()])
        return states


class State:
    """A sentence that is being parsed: the transition system, and the vectors that go with it."""

    def __init__(self, model: Parser, graph: ln.Graph, sentence: Sentence) -> None:
        self.model, self.graph = model, graph
        self.tree, self.relations = ArcStandard(len(sentence)), ["root"] * len(sentence)
        # Of every word, later of the subtree below it, by its number; one more for the empty buffer.
        self.vectors = dict(enumerate(ln.split(model.encode(graph, sentence), len(sentence) + 1, axis=0), 1))
        self.stack, self.history = model.stack.empty(graph), model.history.empty(graph)

    def features(self) -> ln.Node:
        """What the next action depends on."""
        return ln.concat([self.stack.h, self.vectors[self.tree.next], self.history.h])

    def apply(self, action: str) -> None:
        """Takes the action."""
        name, _, relation = action.partition("-")
        embedded = self.model.embed_action(self.graph, self.model.actions[action])
        arc = self.tree.arc(Transition[name])
        if arc is None:
            top = self.tree.next
        else:
            top, dependent = arc
            self.vectors[top] = self.model.compose(self.vectors[top], self.vectors[dependent], embedded)
            self.relations[dependent - 1] = relation
            self.stack = self.stack.pop().pop()
        self.stack, self.history = self.stack.push(self.vectors[top]), self.history.push(embedded)
        self.tree.apply(Transition[name])


def relations_of(sentence: Sentence) -> list[str]:
    """The relation of every word to its head, without its subtype."""
    return [word.deprel.partition(":")[0] for word in sentence.words]


def oracle(sentence: Sentence) -> list[str]:
    """The actions that make the sentence's tree."""
    state, relations, actions = ArcStandard(len(sentence)), relations_of(sentence), []
    for transition in ArcStandard.oracle(sentence.heads):
        arc = state.arc(transition)
        actions.append(transition.name if arc is None else f"{transition.name}-{relations[arc[1] - 1]}")
        state.apply(transition)
    return actions


def generate(count: int, seed: int) -> list[Sentence]:
    """Sentences of a small grammar. Phrases with "of" belong to the noun before them, those with "with" to the verb."""
    rng, sentences = random.Random(seed), []
    for _ in range(count):
        words: list[Word] = []
        verb = 0
        for relation in ["nsubj", "root", "obj", *rng.choices(["nmod", "obl"], k=rng.randint(0, 3))]:
            preposition = {"nmod": "of", "obl": "with"}.get(relation)
            tags = ["ADP"] * bool(preposition) + ["DET"] * rng.randint(0, 1) + ["ADJ"] * rng.randint(0, 2) + ["NOUN"]
            if relation == "root":
                tags, verb = ["VERB"], len(words) + 1
            before, last = len(words), len(words) + len(tags)
            for number, tag in enumerate(tags, before + 1):
                form = preposition if tag == "ADP" else f"{tag}{rng.randrange(20)}"
                head = last if number < last else {"root": 0, "nmod": before}.get(relation, verb)
                name = tag.lower() if number < last else relation
                words.append(Word(number, form, form, tag, "_", {}, head, name, "_", "_"))
            if relation == "root":
                words[verb - 2].head = verb
        sentences.append(Sentence(words))
    return sentences


def evaluate(model: Parser, graph: ln.Graph, sentences: list[Sentence], batch: int) -> tuple[float, float]:
    """UAS and LAS. The graph keeps all values: one with train=False would compute some again at every step."""
    model.eval()
    attached, labelled = ln.metrics.Mean(), ln.metrics.Mean()
    for group in minibatches(sentences, batch, shuffle=False):
        with graph:
            states = model.parse(graph, group)
        for sentence, state in zip(group, states, strict=True):
            right = np.equal(sentence.heads, state.tree.heads)
            attached.update(right.mean(), count=len(right))
            labelled.update((right & np.equal(relations_of(sentence), state.relations)).mean(), count=len(right))
    model.train()
    return attached.value, labelled.value


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Trains, tests after every epoch, and returns the last figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the two files; without it sentences are generated")
    parser.add_argument("--quick", action="store_true", help="a few seconds on generated sentences")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16, help="sentences in a minibatch")
    parser.add_argument("--dim", type=int, default=128, help="size of the states")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=ln.num_threads())
    parser.add_argument("--save", metavar="FILE", help="where the model is kept")
    options = parser.parse_args(arguments)
    random.seed(options.seed)
    ln.seed(options.seed)
    ln.set_num_threads(options.threads)
    if options.data is None or options.quick:
        train, test = generate(250 if options.quick else 2000, seed=1), generate(200, seed=2)
    else:
        train, test = (read_conllu(options.data / f"en_ewt-ud-{part}.conllu") for part in ("dev", "test"))
    used = [sentence for sentence in train if is_projective(sentence.heads)]
    print(f"{len(train)} training sentences, {len(used)} of them projective and used; {len(test)} to test")
    pairs = [(sentence, oracle(sentence)) for sentence in used]
    model = Parser(used, [actions for _, actions in pairs], 32 if options.quick else options.dim)
    optimizer = ln.optim.Adam(model.parameters(), lr=5e-3 if options.quick else 2e-3)
    graph, figures = ln.Graph(seed=options.seed), {}
    for epoch in range(1, 1 + options.epochs):
        graph.reset_statistics()
        start, mean = time.perf_counter(), ln.metrics.Mean()
        with tqdm(total=len(pairs), desc=f"epoch {epoch}", unit=" sentences", leave=False) as progress:
            for group in minibatches(pairs, options.batch, seed=epoch):
                count = sum(len(actions) for _, actions in group)
                with graph:
                    loss = ln.sum([model.loss(graph, *pair) for pair in group]) * (1 / count)
                    graph.backward(loss)
                    mean.update(loss.item(), count)
                optimizer.step(max_norm=5.0)
                progress.set_postfix(loss=f"{mean.value:.3f}", refresh=False)
                progress.update(len(group))
        end, counts = time.perf_counter(), graph.statistics()
        uas, las = evaluate(model, graph, test, 100)
        speeds = len(pairs) / (end - start), len(test) / (time.perf_counter() - end)
        nodes, kernels = counts["nodes"], counts["kernels_forward"]
        figures = {"loss": mean.value, "uas": uas, "las": las, "nodes": nodes, "kernels": kernels}
        print(f"epoch {epoch}: loss {mean.value:.3f}, UAS {uas:.1%}, LAS {las:.1%}; sentences/s in training", end=" ")
        print(f"{speeds[0]:.0f}, in parsing {speeds[1]:.0f}; {nodes:,} nodes ran in {kernels:,} kernels", flush=True)
    if options.save:
        tokens = {"words": model.words.tokens, "tags": model.tags.tokens, "actions": model.actions.tokens}
        ln.save(options.save, model=model, **tokens)
    return figures


if __name__ == "__main__":
    main()
