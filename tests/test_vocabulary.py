"""Vocabularies."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazynet import errors
from lazynet.data import Vocabulary, read_tagged

from .corpora import corpus

TEXT = [list("babc"), list("acbd"), ["e"]]
tokens = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1, max_size=4)


def test_order():
    assert Vocabulary.build(TEXT).tokens == ("<unk>", "b", "a", "c", "d", "e")
    assert Vocabulary.build(TEXT, min_count=2).tokens == ("<unk>", "b", "a", "c")
    assert Vocabulary.build(TEXT, max_size=3).tokens == ("<unk>", "b", "a")
    assert Vocabulary.build(TEXT, max_size=1).tokens == ("<unk>",)
    assert Vocabulary.build(TEXT, specials=(), unknown=None, max_size=0).tokens == ()
    # Specials come first and once, whatever the text holds and however rare they are.
    assert Vocabulary.build(TEXT, 2, 4, ("<s>", "d", "<unk>")).tokens == ("<s>", "d", "<unk>", "b")
    assert Vocabulary.build(TEXT, specials=("<unk>", "b")).tokens == ("<unk>", "b", "a", "c", "d", "e")
    assert Vocabulary.from_counts({"x": 1, "y": 3, "z": 1}).tokens == ("<unk>", "y", "x", "z")
    assert Vocabulary.build(iter([iter(["b", "a"])])).tokens == ("<unk>", "b", "a")


def test_ids():
    words = Vocabulary.build(TEXT, specials=("<s>", "</s>", "<unk>"))
    assert words.encode(["<s>", "b", "zebra", "</s>"]) == [0, 3, 2, 1]
    assert words.decode(np.array([3, 2, 1])) == ["b", "<unk>", "</s>"]
    assert "b" in words and "zebra" not in words and 3 not in words
    assert words["b"] == 3 and words["zebra"] == 2 and len(words) == 8 and list(words) == list(words.tokens)
    assert Vocabulary(["?", "a"], unknown="?").encode(["b"]) == [0]


def test_unknown_tokens_without_a_token_for_them():
    for words in (Vocabulary(["a", "b"]), Vocabulary(["a", "<unk>"], unknown=None), Vocabulary(["a"], unknown="?")):
        assert words.encode(["a"]) == [0]
        for use in (lambda words=words: words.encode(["a", "zebra"]), lambda words=words: words["zebra"]):
            with pytest.raises(errors.DataError, match="token 'zebra' is not in the vocabulary"):
                use()


@pytest.mark.parametrize(
    "build, error, message",
    [
        (lambda: Vocabulary(["a", ""]), errors.DataError, "token 1: ''"),
        (lambda: Vocabulary(["a\nb"]), errors.DataError, "token 0: .*without line breaks"),
        (lambda: Vocabulary(["a\r"]), errors.DataError, "without line breaks"),
        (lambda: Vocabulary(["\ud800"]), errors.DataError, "token 0"),
        (lambda: Vocabulary(["a", "b", "a"]), errors.DataError, "token 2: 'a' is given again"),
        (lambda: Vocabulary(["a", 3]), errors.NodeTypeError, "token 1: 3"),
        (lambda: Vocabulary("abc"), errors.NodeTypeError, "list of tokens is required"),
        (lambda: Vocabulary(None), errors.NodeTypeError, "list of tokens is required"),
        (lambda: Vocabulary.build("the dog"), errors.NodeTypeError, "list of tokens is required"),
        (lambda: Vocabulary.build(["the dog"]), errors.NodeTypeError, r"'the dog' is given; .*text\.split\(\)"),
        (lambda: Vocabulary.build(TEXT, specials="<unk>"), errors.NodeTypeError, "'<unk>' is given"),
        (lambda: Vocabulary.build(TEXT, specials=("<s>", "<s>")), errors.DataError, "again"),
        (lambda: Vocabulary.build(TEXT, max_size=0), errors.NodeValueError, "room for the 1 specials"),
        (lambda: Vocabulary(["a"]).encode("a"), errors.NodeTypeError, "encode: 'a' is given"),
        (lambda: Vocabulary(["a"]).decode([0, 1]), errors.NodeIndexError, "id 1 is given; one from 0 to 0"),
        (lambda: Vocabulary(["a"]).decode([-1]), errors.NodeIndexError, "id -1"),
        (lambda: Vocabulary(["a"]).decode([0.0]), errors.NodeTypeError, "decode: .*integers are required"),
    ],
)
def test_mistakes(build, error, message):
    with pytest.raises(error, match=message):
        build()


@settings(deadline=None)
@given(st.lists(tokens, unique=True))
def test_save_and_load(tmp_path_factory, held):
    path = tmp_path_factory.getbasetemp() / "words.txt"
    words = Vocabulary(held, unknown=None)
    words.save(path)
    assert Vocabulary.load(path, unknown=None).tokens == words.tokens
    if not any(token.startswith("\ufeff") for token in held):
        assert path.read_bytes().decode("utf8") == "".join(f"{token}\n" for token in held)


def test_files(tmp_path):
    path = tmp_path / "words.txt"
    Vocabulary(["\ufeffa", "b"]).save(path)
    assert Vocabulary.load(path).tokens == ("\ufeffa", "b")
    path.write_bytes("\ufeff<unk>\r\na\r\n".encode())  # edited on Windows
    assert Vocabulary.load(path).encode(["a", "b"]) == [1, 0]
    for text, line in (("a\n\nb\n", 2), ("a\nb\na\n", 3)):
        path.write_text(text, encoding="utf8")
        with pytest.raises(errors.DataError, match=rf"words\.txt, line {line}: "):
            Vocabulary.load(path)
    with pytest.raises(errors.DataError, match=r"absent\.txt cannot be read"):
        Vocabulary.load(tmp_path / "absent.txt")
    with pytest.raises(errors.DataError, match="cannot be written: Is a directory"):
        Vocabulary(["a"]).save(tmp_path)


@given(st.lists(st.lists(st.sampled_from("abcdefgh"))), st.integers(1, 4), st.integers(1, 9))
def test_counts(sentences, min_count, max_size):
    counts = Counter(token for sentence in sentences for token in sentence)
    words = Vocabulary.build(sentences, min_count, max_size)
    kept = [token for token, _ in counts.most_common() if counts[token] >= min_count]
    assert words.tokens == ("<unk>", *kept[: max_size - 1])
    for sentence in sentences:
        assert words.decode(words.encode(sentence)) == [token if token in words else "<unk>" for token in sentence]


def test_corpus(tmp_path):
    sentences = [words for words, _ in read_tagged(corpus("ner") / "train.txt")]
    words = Vocabulary.build(sentences, min_count=2, specials=("<unk>", "<s>", "</s>"))
    seen = Counter(token for sentence in sentences for token in sentence)
    assert set(words.tokens[3:]) == {token for token, count in seen.items() if count > 1}
    words.save(tmp_path / "words.txt")
    loaded = Vocabulary.load(tmp_path / "words.txt")
    assert [loaded.encode(sentence) for sentence in sentences] == [words.encode(sentence) for sentence in sentences]
