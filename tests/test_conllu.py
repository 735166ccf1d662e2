"""CoNLL-U, projectivity, and the transition systems."""

import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazynet import errors
from lazynet.data import ArcHybrid, ArcStandard, Transition, TransitionState, is_projective, read_conllu

from .corpora import corpus

SYSTEMS = pytest.mark.parametrize("system", [ArcStandard, ArcHybrid])

TEXT = """\
# newdoc
# sent_id = one
# text = Don't = "no" 2.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tDo\tdo\tAUX\tVB\tMood=Imp|VerbForm=Fin\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tgo\tgo\tVERB\tVB\tMood=Imp\t_\t_\t0:root\t_
2.2\tgo\tgo\tVERB\tVB\t_\t_\t_\t0:root\t_
3\tNew York\t_\tVERB\t_\t_\t0\troot\t0:root\tNote

# just a comment

1\t_\t_\t_\t_\t_\t_\t_\t_\t_
"""


def row(number, head="0", feats="_", form="a"):
    return "\t".join([str(number), form, "_", "_", "_", feats, head, "_", "_", "_"])


def crossings(heads):
    """Pairs of arcs, those of the root among them, that cross."""
    arcs = [(min(word, head), max(word, head)) for word, head in enumerate(heads, 1)]
    return [(a, b) for a in arcs for b in arcs if a[0] < b[0] < a[1] < b[1]]


def is_tree(heads):
    for start in range(1, len(heads) + 1):
        word = start
        for _ in range(len(heads)):
            word = heads[word - 1] if word else 0
        if word:
            return False
    return True


@pytest.mark.parametrize("text", [TEXT, TEXT[:-1], "\ufeff" + TEXT.replace("\n", "\r\n"), "\n\n" + TEXT + "\n \n"])
def test_conllu(tmp_path, text):
    path = tmp_path / "a.conllu"
    path.write_bytes(text.encode())
    first, second = read_conllu(path)
    assert first.forms == ["Do", "n't", "New York"] and first.heads == [3, 3, 0] and len(first) == 3
    assert first.metadata == {"sent_id": "one", "text": 'Don\'t = "no" 2.'}
    assert first.comments[0] == "newdoc" and len(first.comments) == 3
    word = first.words[0]
    assert (word.id, word.lemma, word.upos, word.xpos, word.deprel) == (1, "do", "AUX", "VB", "aux")
    assert word.feats == {"Mood": "Imp", "VerbForm": "Fin"} and first.words[1].feats == {}
    assert (first.words[2].deps, first.words[2].misc, first.words[2].lemma) == ("0:root", "Note", "_")
    assert first.multiword_tokens == [(1, 2, "Don't", "SpaceAfter=No")]
    assert [(node.after, node.number, node.form) for node in first.empty_nodes] == [(2, 1, "go"), (2, 2, "go")]
    assert first.empty_nodes[0].feats == {"Mood": "Imp"} and first.empty_nodes[0].deps == "0:root"
    assert second.words[0].head is None and second.words[0].form == "_" and second.metadata == {}
    with pytest.raises(errors.DataError, match="0 of 1 words have a head"):
        _ = second.heads


@pytest.mark.parametrize(
    "rows, line, message",
    [
        (["1\ta"], 1, "2 columns are given; 10, separated by tabs, are required"),
        (["1 a _ _ _ _ 0 _ _ _"], 1, "1 columns are given"),
        ([row(1) + "\t_"], 1, "11 columns"),
        (["# c", row(1, form="")], 2, "column FORM is empty"),
        ([row(2)], 1, "ID 2 is given after 0 words"),
        ([row(1), row(1)], 2, "ID 1 is given after 1 words"),
        ([row("x")], 1, "ID x"),
        ([row("１")], 1, "ID １"),
        ([row("1,2")], 1, "ID 1,2"),
        ([row("2-1"), row(1)], 1, "ID 2-1"),
        ([row(1), row("1-2"), row(2)], 2, "ID 1-2"),
        ([row("1-2"), row("1-3"), row(1)], 2, "ID 1-3"),
        ([row("1-2"), row(1), row("2-3"), row(2), row(3)], 3, "ID 2-3"),
        ([row("1-3"), row(1), row(2)], 3, "2 words; those of the multi-word token"),
        ([row(1), row("1.2")], 2, "ID 1.2"),
        ([row(1), row("2.1")], 2, "ID 2.1"),
        ([row(1, "x")], 1, "HEAD x"),
        ([row(1, "-1")], 1, "HEAD -1"),
        ([row(1, "1.1")], 1, "HEAD 1.1"),
        (["", row(1, "3"), row(2)], 2, "HEAD 3 is given; one from 0 to 2"),
        ([row(1), "", row(1), row(2, "3"), row(3, "2")], 4, "the heads of word 2 lead back to it"),
        ([row(1, "1")], 1, "the heads of word 1 lead back"),
        ([row(1, feats="Case")], 1, "FEATS Case"),
        ([row(1, feats="A=1||B=2")], 1, "FEATS"),
    ],
)
def test_malformed(tmp_path, rows, line, message):
    path = tmp_path / "a.conllu"
    path.write_text("\n".join(rows) + "\n", encoding="utf8")
    with pytest.raises(errors.DataError, match=rf"a\.conllu, line {line}: .*{message}"):
        read_conllu(path)


@given(st.integers(1, 7).flatmap(lambda n: st.lists(st.integers(0, n), min_size=n, max_size=n)))
def test_projective_trees_are_those_without_crossings(heads):
    assert is_projective(heads) == (is_tree(heads) and not crossings(heads))


def test_projectivity_at_the_edges():
    assert is_projective([]) and is_projective(range(5000)) and not is_projective([1])
    for heads in ([2], [0, -1]):
        with pytest.raises(errors.NodeIndexError, match="is_projective: word . has head"):
            is_projective(heads)


def random_run(system, length, seed):
    """A state at the end of legal transitions that were drawn."""
    rng, state, transitions = random.Random(seed), system(length), []
    while not state.is_final:
        transitions.append(rng.choice(state.legal()))
        state.apply(transitions[-1])
    return state, transitions


@SYSTEMS
@given(length=st.integers(1, 25), seed=st.integers(0, 10**6))
def test_any_legal_transitions_make_a_projective_tree(system, length, seed):
    state, transitions = random_run(system, length, seed)
    assert len(transitions) == 2 * length - 1 and not state.legal()
    assert is_projective(state.heads) and state.heads.count(0) == 1
    assert system.replay(length, transitions).heads == state.heads
    for other in (ArcStandard, ArcHybrid):
        assert other.replay(length, other.oracle(state.heads)).heads == state.heads


@SYSTEMS
@pytest.mark.parametrize("length", range(1, 6))
def test_oracle_takes_all_projective_trees_and_no_others(system, length):
    taken = 0
    for heads in filter(is_tree, product(range(length + 1), repeat=length)):
        if heads.count(0) == 1 and not crossings(heads):
            assert system.replay(length, system.oracle(heads)).heads == list(heads)
            taken += 1
        else:
            with pytest.raises(errors.NodeValueError, match="a projective tree with one root is required"):
                system.oracle(heads)
    assert taken == [1, 2, 7, 30, 143][length - 1]  # binomial(3n - 2, n - 1) / n


def test_the_systems_differ_in_what_left_joins():
    shift, left, right = Transition
    standard, hybrid = ArcStandard(3), ArcHybrid(3)
    for state in (standard, hybrid):
        assert state.legal() == [shift] and state.arc(left) is state.arc(right) is None
        state.apply(shift)
        state.apply(shift)
        assert state.stack == [1, 2] and state.next == 3 and not state.is_final
    assert (standard.arc(left), standard.arc(right)) == ((2, 1), (1, 2))
    assert (hybrid.arc(left), hybrid.arc(right)) == ((3, 2), (1, 2))
    assert hybrid.legal() == [shift, left, right]
    standard.apply(left)
    hybrid.apply(left)
    assert (standard.stack, standard.heads) == ([2], [2, 0, 0])
    assert (hybrid.stack, hybrid.heads) == ([1], [0, 3, 0])
    hybrid.apply(shift)
    assert hybrid.legal() == [right]  # no word is left for the other


@SYSTEMS
def test_mistakes(system):
    with pytest.raises(errors.NodeValueError, match="0 words are given"):
        system(0)
    with pytest.raises(errors.NodeValueError, match=r"LEFT.* the stack \[\] and 2 words to come; SHIFT is required"):
        system(2).apply(Transition.LEFT)
    with pytest.raises(errors.NodeValueError, match="7 is given"):
        system(2).apply(7)
    with pytest.raises(errors.NodeValueError, match="the tree is finished"):
        system.replay(1, [Transition.SHIFT, Transition.SHIFT])
    with pytest.raises(errors.NodeValueError, match="one root"):
        system.oracle([])
    with pytest.raises(TypeError):
        TransitionState(1)


@pytest.mark.parametrize("part, sentences", [("dev", 2001), ("test", 2077)])
def test_treebank(part, sentences):
    path = corpus("conllu") / f"en_ewt-ud-{part}.conllu"
    read = read_conllu(path)
    assert len(read) == sentences and all(len(sentence) for sentence in read)
    ids = [line.split("\t")[0] for line in path.read_text(encoding="utf8").split("\n") if line[:1].isdigit()]
    assert sum(len(sentence) for sentence in read) == sum(number.isdigit() for number in ids)
    assert sum(len(sentence.multiword_tokens) for sentence in read) == sum("-" in number for number in ids) > 0
    assert sum(len(sentence.empty_nodes) for sentence in read) == sum("." in number for number in ids) > 0
    projective = [sentence.heads for sentence in read if is_projective(sentence.heads)]
    assert 0.95 * sentences < len(projective) < sentences
    assert all(bool(crossings(sentence.heads)) != is_projective(sentence.heads) for sentence in read[:300])
    for system in (ArcStandard, ArcHybrid):
        for heads in projective:
            assert system.replay(len(heads), system.oracle(heads)).heads == heads
