"""Decoding: beam search against exhaustive search, minibatches against one sentence, scores against forced decoding."""

import math
from collections import OrderedDict, defaultdict
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lazynet as ln
from lazynet import errors
from lazynet.decode import Hypothesis, nest, stepper

BEGIN, END = 0, 1


class Translator(ln.Module):
    """LSTM encoder and decoder, dot attention."""

    def __init__(self, words=11, dim=8, dropout=0.0):
        self.words, self.embed = words, ln.nn.Embedding(words, dim)
        self.encoder, self.decoder = ln.nn.LSTM(dim, dim), ln.nn.LSTMCell(dim, dim)
        self.combine, self.out = ln.nn.Linear(2 * dim, dim), ln.nn.Linear(dim, words)
        self.drop = ln.nn.Dropout(dropout)

    def start(self, graph, source):
        encoded, finals = self.encoder(self.embed(graph, source))
        return {"encoded": encoded, "lstm": finals[-1]}

    def step(self, graph, state, token):
        after = self.decoder(self.drop(self.embed(graph, token)), state["lstm"])
        weights = ln.softmax(ln.matmul(after.h, state["encoded"], transpose_b=True))
        mixed = ln.tanh(self.combine(ln.concat([after.h, weights @ state["encoded"]])))
        return 4.0 * self.out(mixed), {**state, "lstm": after}


class Cache(NamedTuple):
    keys: ln.Node
    values: ln.Node
    position: int


class Attender(ln.Module):
    """Attention over the source and over all tokens so far, whose keys and values are kept."""

    def __init__(self, words=11, dim=8):
        self.words, self.embed = words, ln.nn.Embedding(words, dim)
        self.query, self.key, self.value = (ln.nn.Linear(dim, dim) for _ in range(3))
        self.out = ln.nn.Linear(dim, words)

    def start(self, graph, source):
        encoded = self.embed(graph, source)
        return Cache(self.key(encoded), self.value(encoded), len(source))

    def step(self, graph, state, token):
        x = ln.rotary(self.embed(graph, token), start=state.position)
        keys = ln.concat([state.keys, self.key(x)], axis=0)
        values = ln.concat([state.values, self.value(x)], axis=0)
        mixed = x + ln.attention(self.query(x), keys, values, 2)
        return 2.0 * self.out(ln.tanh(mixed)), Cache(keys, values, state.position + 1)


class Table:
    """Logits that a function of the source and the tokens so far gives."""

    def __init__(self, logits):
        self.logits = logits

    def start(self, graph, source):
        return source, ()

    def step(self, graph, state, token):
        source, tokens = state
        tokens = (*tokens, token)
        return graph.input(self.logits(source, tokens[1:])), (source, tokens)


def random_table(words, scale=1.0):
    """The same logits for the same source and tokens."""
    return Table(lambda source, tokens: scale * np.random.default_rng([source, *tokens]).standard_normal(words))


def sources_of(count, words=11, longest=9):
    rng = np.random.default_rng(count)
    return [rng.integers(2, words, rng.integers(1, longest + 1)).tolist() for _ in range(count)]


@pytest.fixture(params=[Translator, Attender])
def model(request):
    ln.seed(3)
    model = request.param()
    model.out.bias.value = np.where(np.arange(model.words) == END, 0.3, model.out.bias.value)
    return model


def same(found, wanted, tolerance=1e-5):
    assert [[h.tokens for h in each] for each in found] == [[h.tokens for h in each] for each in wanted]
    assert [[h.finished for h in each] for each in found] == [[h.finished for h in each] for each in wanted]
    for some, others in zip(found, wanted, strict=True):
        for name in ("score", "normalized"):
            expected = [getattr(h, name) for h in others]
            np.testing.assert_allclose([getattr(h, name) for h in some], expected, tolerance, tolerance)


# ---- what is found


def log_probabilities(logits):
    return logits - np.log(np.exp(logits).sum())


def exhaustive(table, source, words, longest, penalty):
    """All finished outputs, the best first."""
    every = []
    for length in range(longest):
        for tokens in product([token for token in range(words) if token != END], repeat=length):
            score = 0.0
            for position, token in enumerate([*tokens, END]):
                score += log_probabilities(table.logits(source, tokens[:position]))[token]
            every.append(Hypothesis(list(tokens), score, score / ((6 + length) / 6) ** penalty, True))
    return sorted(every, key=lambda hypothesis: -hypothesis.normalized)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 4), st.integers(1, 4), st.sampled_from([-1.0, 0.0, 0.6, 2.0]), st.integers(1, 9), st.integers(0, 99)
)
def test_a_large_beam_finds_what_exhaustive_search_finds(words, longest, penalty, best, seed):
    table, sources = random_table(words, 2.0), [seed, seed + 100]
    found = ln.decode.beam_search(
        table,
        sources,
        beam=words**longest + best,
        begin=BEGIN,
        end=END,
        max_length=longest,
        length_penalty=penalty,
        best=best,
        graph=ln.Graph(train=False, dtype="float64"),
    )
    for source, hypotheses in zip(sources, found, strict=True):
        wanted = exhaustive(table, source, words, longest, penalty)[:best]
        same([[h for h in hypotheses if h.finished]], [wanted], 1e-9)
        assert not any(h.finished for h in hypotheses[len(wanted) :])


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(0, 8), st.lists(st.integers(0, 99), max_size=5))
def test_a_beam_of_one_is_greedy(words, longest, sources):
    options = {"begin": BEGIN, "end": END, "max_length": longest}
    table = random_table(words)
    found = ln.decode.greedy(table, sources, **options)
    same(ln.decode.beam_search(table, sources, beam=1, **options), found)
    for source, [hypothesis] in zip(sources, found, strict=True):
        tokens = []
        while len(tokens) < longest and (token := int(np.argmax(table.logits(source, tuple(tokens))))) != END:
            tokens.append(token)
        assert hypothesis.tokens == tokens and hypothesis.finished == (len(tokens) < longest)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 99), st.sampled_from([0.0, 1.0]))
def test_hypotheses_are_distinct_and_in_order(words, beam, longest, source, penalty):
    options = {"begin": BEGIN, "end": END, "max_length": longest, "length_penalty": penalty}
    [found] = ln.decode.beam_search(random_table(words), [source], beam=beam, best=beam, **options)
    assert len({(tuple(h.tokens), h.finished) for h in found}) == len(found)
    finished = [h.finished for h in found]
    assert finished == sorted(finished, reverse=True)
    for some in ([h for h in found if h.finished], [h for h in found if not h.finished]):
        assert [h.normalized for h in some] == sorted((h.normalized for h in some), reverse=True)
    assert all(len(h.tokens) + h.finished <= longest and END not in h.tokens for h in found)


def test_length_penalty_by_hand():
    """Ending at once has p = 0.4; 2 and then the end has 0.6 * 0.6 = 0.36."""
    with np.errstate(divide="ignore"):
        rows = np.log([[0.0, 0.4, 0.6], [0.0, 0.6, 0.4]])
    table = Table(lambda source, tokens: rows[min(len(tokens), 1)])
    options = {"beam": 2, "best": 2, "begin": BEGIN, "end": END, "max_length": 2}
    [plain] = ln.decode.beam_search(table, [0], **options)
    [longer] = ln.decode.beam_search(table, [0], length_penalty=1.0, **options)
    assert [h.tokens for h in plain] == [[], [2]]
    assert [h.tokens for h in longer] == [[2], []]
    for found in (plain, longer[::-1]):
        np.testing.assert_allclose([h.score for h in found], np.log([0.4, 0.36]), 1e-6)
    np.testing.assert_allclose([h.normalized for h in longer], [np.log(0.36) / (7 / 6), np.log(0.4)], 1e-6)


def test_ties_go_to_the_earlier_hypothesis_and_the_lower_token():
    table = Table(lambda source, tokens: np.zeros(4))
    [found] = ln.decode.beam_search(table, [0], beam=3, best=3, begin=BEGIN, end=END, max_length=2)
    assert [h.tokens for h in found] == [[], [0], [0, 0]]
    [[first]] = ln.decode.greedy(table, [0], begin=BEGIN, end=END, max_length=2)
    assert first == Hypothesis([0, 0], first.score, first.score, False)


def test_an_improbable_end_does_not_finish_early():
    """A hypothesis that ends is kept only where it is among the best of the beam."""
    table = Table(lambda source, tokens: np.log([0.05, 0.1, 0.85]))
    [[found]] = ln.decode.beam_search(table, [0], beam=1, begin=BEGIN, end=END, max_length=3)
    assert found.tokens == [2, 2, 2] and not found.finished
    np.testing.assert_allclose(found.score, 3 * math.log(0.85), 1e-6)


def test_a_search_stops_when_nothing_better_can_come():
    calls = []

    def logits(source, tokens):
        calls.append((source, tokens))
        return np.log([0.04, 0.9 if len(tokens) == source else 0.02, 0.06 if len(tokens) == source else 0.94])

    found = ln.decode.beam_search(Table(logits), [0, 3], beam=2, begin=BEGIN, end=END, max_length=100)
    assert [each[0].tokens for each in found] == [[], [2, 2, 2]]
    assert {source: max(len(tokens) for other, tokens in calls if other == source) for source in (0, 3)} == {0: 0, 3: 3}


def test_what_is_masked_is_never_taken():
    table = Table(lambda source, tokens: [-np.inf, 0.0, -np.inf] if tokens else [-np.inf, -np.inf, 1.0])
    options = {"begin": BEGIN, "end": END, "max_length": 5}
    [found] = ln.decode.beam_search(table, [0], beam=3, best=3, **options)
    assert found == [Hypothesis([2], 0.0, 0.0, True)]
    assert ln.decode.sample(table, [0], **options) == [found]


# ---- minibatches, scores, memory


@pytest.mark.parametrize("penalty", [0.0, 0.8])
def test_a_minibatch_equals_one_sentence_at_a_time(model, penalty):
    options = {"beam": 4, "best": 4, "begin": BEGIN, "end": END, "length_penalty": penalty}
    options["max_length"] = lambda source: 2 * len(source)
    sources = sources_of(64)
    found = ln.decode.beam_search(model, sources, **options)
    same(found, [ln.decode.beam_search(model, [source], **options)[0] for source in sources], 1e-4)
    assert {h.finished for each in found for h in each} == {True, False}


def test_samples_do_not_depend_on_the_minibatch(model):
    options = {"begin": BEGIN, "end": END, "max_length": 8, "seed": 5}
    sources = sources_of(20)
    found = ln.decode.sample(model, sources, **options)
    same(ln.decode.sample(model, sources[:7], **options), found[:7], 1e-4)
    assert ln.decode.sample(model, sources, **{**options, "seed": 6}) != found
    same(ln.decode.sample(model, sources, top_k=1, **options), ln.decode.greedy(model, sources, **options_of(options)))
    same(
        ln.decode.sample(model, sources, temperature=1e-4, **options),
        ln.decode.greedy(model, sources, **options_of(options)),
        1e-4,
    )


def options_of(options):
    return {name: options[name] for name in ("begin", "end", "max_length")}


def test_samples_have_the_models_distribution():
    table = Table(lambda source, tokens: np.log([0.2, 0.5, 0.3]))
    options = {"begin": BEGIN, "end": END, "max_length": 1}
    drawn = ln.decode.sample(table, range(4000), **options)
    counts = np.array([sum(h.tokens == tokens for [h] in drawn) for tokens in ([0], [], [2])])
    np.testing.assert_allclose(counts / 4000, [0.2, 0.5, 0.3], atol=0.03)
    drawn = ln.decode.sample(table, range(4000), temperature=0.5, top_k=2, **options)
    assert [0] not in [h.tokens for [h] in drawn]
    share = np.mean([h.finished for [h] in drawn])
    np.testing.assert_allclose(share, 0.25 / (0.25 + 0.09), atol=0.03)
    np.testing.assert_allclose(drawn[0][0].score, math.log(0.5 if drawn[0][0].finished else 0.3), 1e-6)


def test_scores_are_those_of_forced_decoding(model):
    sources = sources_of(16)
    for found in (
        ln.decode.beam_search(model, sources, beam=3, best=3, begin=BEGIN, end=END, max_length=7),
        ln.decode.greedy(model, sources, begin=BEGIN, end=END, max_length=7),
        ln.decode.sample(model, sources, begin=BEGIN, end=END, max_length=7, temperature=2.0),
    ):
        for finished in (True, False):
            pairs = [(s, h) for s, each in zip(sources, found, strict=True) for h in each if h.finished == finished]
            forced = ln.decode.score(
                model, [s for s, _ in pairs], [h.tokens for _, h in pairs], begin=BEGIN, end=END if finished else None
            )
            np.testing.assert_allclose([h.score for _, h in pairs], forced, 1e-4, 1e-4)


def test_moving_the_states_changes_nothing(model, monkeypatch):
    options = {"beam": 3, "best": 3, "begin": BEGIN, "end": END, "max_length": 20}
    sources = sources_of(12)
    found = ln.decode.beam_search(model, sources, **options)
    sizes = []
    monkeypatch.setattr(stepper.Stepper, "_held", lambda self: sizes.append(len(self.graph)) or self._budget + 1)
    same(ln.decode.beam_search(model, sources, **options), found, 1e-4)
    assert len(sizes) >= 8 and max(sizes) < 1500


def test_memory_does_not_grow_with_the_length(monkeypatch):
    monkeypatch.setattr(stepper, "BUDGET", 1 << 18)
    ln.seed(0)
    model, peaks, nodes = Translator(dim=32), [], []
    model.out.bias.value = np.where(np.arange(model.words) == END, -100, 0)
    step = model.step
    for length in (40, 400):
        graph = ln.Graph(train=False, chunk_bytes=1 << 16)
        model.step = lambda *arguments, graph=graph: (nodes.append(len(graph)), step(*arguments))[1]
        [[found]] = ln.decode.beam_search(
            model, [[2, 3, 4]], beam=4, begin=BEGIN, end=END, max_length=length, graph=graph
        )
        assert len(found.tokens) == length
        peaks.append(graph.statistics()["pool"]["peak_bytes_in_use"])
    assert peaks[1] < 1.2 * peaks[0] < 1 << 20
    assert max(nodes) < 2000


def test_nests_keep_their_types_and_what_they_share():
    class Rows(list):
        pass

    graph = ln.Graph(train=False)
    a, b = graph.input([1.0]), graph.input([2.0])
    table = defaultdict(int, {"a": a, "n": 3})
    value = (Rows([a, b, "word"]), Cache(a, b, 7), OrderedDict(x=(b,)), table, None, ())
    assert nest.collect(value) == {a._handle: a, b._handle: b}
    new = {a._handle: graph.input([3.0]), b._handle: graph.input([4.0])}
    rows, cache, ordered, replaced, none, empty = nest.replace(value, new)
    assert type(rows) is Rows and rows[2] == "word" and type(cache) is Cache and cache.position == 7
    assert type(ordered) is OrderedDict and type(replaced) is defaultdict and replaced.default_factory is int
    assert rows[0] is cache.keys is replaced["a"] and rows[1] is cache.values is ordered["x"][0]
    assert none is None and empty == () and value[3]["a"] is a


def test_float64_and_a_graph_of_ones_own():
    ln.seed(1)
    model = Translator().to("float64")
    graph = ln.Graph(train=False, dtype="float64", policy="agenda")
    options = {"begin": BEGIN, "end": END, "max_length": 6}
    sources = sources_of(5)
    found = ln.decode.beam_search(model, sources, beam=3, best=3, graph=graph, **options)
    same(found, ln.decode.beam_search(model.to("float32"), sources, beam=3, best=3, **options), 1e-4)
    assert len(graph) == 0


def test_dropout_is_off():
    ln.seed(2)
    model = Translator(dropout=0.9)
    sources, options = sources_of(5), {"begin": BEGIN, "end": END, "max_length": 6}
    assert model.training and model.drop.training
    assert ln.decode.greedy(model, sources, **options) == ln.decode.greedy(model.eval(), sources, **options)


def test_the_models_cells_may_be_off(model):
    sources, options = sources_of(8), {"beam": 3, "begin": BEGIN, "end": END, "max_length": 6}
    found = ln.decode.beam_search(model, sources, **options)
    before = ln.set_cells(False)
    try:
        same(ln.decode.beam_search(model, sources, **options), found, 1e-4)
    finally:
        ln.set_cells(before)


# ---- edges and mistakes


def test_edges():
    table, options = random_table(3), {"begin": BEGIN, "end": END}
    for decode in (ln.decode.greedy, ln.decode.beam_search, ln.decode.sample):
        assert decode(table, [], max_length=5, **options) == []
        assert decode(table, [0, 1], max_length=0, **options) == [[Hypothesis([], 0.0, 0.0, False)]] * 2
    assert ln.decode.score(table, [], [], **options) == []
    assert ln.decode.score(table, [5], [[]], begin=BEGIN, end=None) == [0.0]
    wide = ln.decode.beam_search(table, [0], beam=50, best=50, max_length=2, **options)[0]
    assert len([h for h in wide if h.finished]) == 3 and len(wide) == 7


def returns(what):
    """A model whose second step returns something else."""

    class Model(Table):
        def step(self, graph, state, token):
            logits, after = super().step(graph, state, token)
            return (logits, after) if len(after[1]) == 1 else what(graph, logits, after)

    return Model(lambda source, tokens: [0.0, -99.0, 0.0, 0.0])


OTHER = ln.Graph(train=False)


@pytest.mark.parametrize(
    "what, error, message",
    [
        (lambda graph, logits, state: logits, errors.NodeTypeError, "step 1 of Model returns Node"),
        (lambda graph, logits, state: (None, state), errors.NodeTypeError, "step 1 of Model"),
        (lambda graph, logits, state: (logits[:, :3], state), errors.ShapeError, r"step 1 .*\(1, 3\); \(1, 4\)"),
        (
            lambda graph, logits, state: (ln.concat([logits, logits], axis=0), state),
            errors.ShapeError,
            r"step 1 .*\(2, 4\); \(1, 4\)",
        ),
        (lambda graph, logits, state: (logits * np.nan, state), errors.NodeValueError, "step 1 .*nan"),
        (lambda graph, logits, state: (logits + np.inf, state), errors.NodeValueError, "step 1 .*(inf|nan)"),
        (lambda graph, logits, state: (logits - np.inf, state), errors.NodeValueError, "step 1 .*-inf"),
        (lambda graph, logits, state: (OTHER.input([0.0] * 4), state), errors.GraphError, "step 1 .*another graph"),
        (lambda graph, logits, state: (logits, [OTHER.input([0.0])]), errors.GraphError, "step 1 .*another graph"),
    ],
)
def test_mistakes_of_the_model(what, error, message):
    graph = ln.Graph(train=False)
    options = {"begin": BEGIN, "end": END, "max_length": 5, "graph": graph}
    for decode in (ln.decode.beam_search, ln.decode.greedy, ln.decode.sample):
        with pytest.raises(error, match=f"^{decode.__name__}: {message}"):
            decode(returns(what), [0, 1], **options)
        assert len(graph) == 0 and graph.input([1.0]).item() == 1
        assert decode(random_table(4), [0], **options)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"beam": 0}, errors.NodeValueError, "beam 0 is given; at least 1"),
        ({"beam": 2.0}, errors.NodeTypeError, "beam of type float"),
        ({"best": 0}, errors.NodeValueError, "best 0"),
        ({"best": 6}, errors.NodeValueError, "best 6 is given for a beam of 5"),
        ({"begin": -1}, errors.NodeValueError, "begin -1"),
        ({"begin": 4}, errors.NodeIndexError, "lookup.*bigrams"),
        ({"end": -1}, errors.NodeValueError, "end -1"),
        ({"end": 4}, errors.NodeIndexError, "end 4 is given for logits of 4 tokens"),
        ({"end": "</s>"}, errors.NodeTypeError, "end of type str"),
        ({"max_length": -1}, errors.NodeValueError, "max_length -1"),
        ({"max_length": lambda source: 0.5}, errors.NodeTypeError, "max_length of type float"),
        ({"length_penalty": math.nan}, errors.NodeValueError, "length_penalty nan"),
        ({"length_penalty": None}, errors.NodeTypeError, "length_penalty of type NoneType"),
        ({"model": None}, errors.NodeTypeError, "model of type NoneType"),
        ({"graph": ln.Graph()}, errors.GraphError, "trains"),
    ],
)
def test_mistakes_of_the_caller(options, error, message):
    class Bigrams:
        table = ln.Parameter(np.zeros((4, 4)), name="bigrams")

        def start(self, graph, source):
            return None

        def step(self, graph, state, token):
            return ln.lookup(graph, self.table, token), state

    given = {"model": Bigrams(), "sources": [0, 1], "begin": BEGIN, "end": END, "max_length": 5, **options}
    with pytest.raises(error, match=message):
        ln.decode.beam_search(**given)


@pytest.mark.parametrize("temperature", [0, -1.0, math.inf, math.nan])
def test_mistakes_of_sampling_and_scoring(temperature):
    options = {"begin": BEGIN, "end": END}
    with pytest.raises(errors.NodeValueError, match="temperature"):
        ln.decode.sample(random_table(3), [0], max_length=1, temperature=temperature, **options)
    with pytest.raises(errors.NodeValueError, match="top_k 0"):
        ln.decode.sample(random_table(3), [0], max_length=1, top_k=0, **options)
    with pytest.raises(errors.NodeValueError, match="2 sources and 1 outputs"):
        ln.decode.score(random_table(3), [0, 1], [[]], **options)
    with pytest.raises(errors.NodeIndexError):
        ln.decode.score(random_table(3), [0], [[3]], **options)
