"""Readers of lines, parallel text, documents, trees and tagged sentences, as a careless user meets them."""

import pytest

from lazynet import errors
from lazynet.data import (
    format_tree,
    read_conllu,
    read_documents,
    read_lines,
    read_parallel,
    read_tagged,
    read_trees,
)

from .corpora import corpus


@pytest.mark.parametrize(
    "data, lines",
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\nb", ["a", "b"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfa", ["\ufeffa"]),
        ("a\u2028b\x85c\x0cd\re\nf".encode(), ["a\u2028b\x85c\x0cd\re", "f"]),
    ],
)
def test_lines(tmp_path, data, lines):
    path = tmp_path / "text.txt"
    path.write_bytes(data)
    assert read_lines(path) == read_lines(str(path)) == lines


@pytest.mark.parametrize("read", [read_lines, read_trees, read_tagged, read_documents, read_conllu])
def test_files_that_are_no_text(tmp_path, read):
    path = tmp_path / "file.txt"
    for data, line, byte in (
        (b"\xef\xbb\xbf(1 a)\n\n(1 caf\xe9)\n", 3, "0xe9"),
        ("(1 a)".encode("utf-16"), 1, "0xff"),
        (b"\xef\xbb\xbf\n\xe9", 2, "0xe9"),
    ):
        path.write_bytes(data)
        with pytest.raises(errors.DataError, match=rf"file\.txt, line {line}: byte {byte} .*UTF-8 text is required"):
            read(path)
    with pytest.raises(errors.DataError, match=r"absent\.txt cannot be read: No such file"):
        read(tmp_path / "absent.txt")
    with pytest.raises(errors.DataError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_trees_and_tagged_from_windows(tmp_path):
    path = tmp_path / "windows.txt"
    path.write_bytes("\ufeff(3 (2 It) (4 works))\r\n\r\n  \r\n(1 a)\r\n".encode())
    assert [format_tree(tree) for tree in read_trees(path)] == ["(3 (2 It) (4 works))", "(1 a)"]
    path.write_bytes("\ufeffIt|PRP works|VBZ\r\n\r\n \t\r\n||SYM\r\n".encode())
    assert read_tagged(path) == [(["It", "works"], ["PRP", "VBZ"]), (["|"], ["SYM"])]
    for data in (b"\r\nIt|PRP works", b"a|X\nworks|", b"a|X\n|VBZ"):
        path.write_bytes(data)
        with pytest.raises(
            errors.DataError, match=r"windows\.txt, line 2: '(works|works\||\|VBZ)' is given; word\|tag"
        ):
            read_tagged(path)
    path.write_bytes(b"")
    assert read_trees(path) == read_tagged(path) == []


def test_parallel(tmp_path):
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("a dog\n\nit rains\nlast", encoding="utf8")
    target.write_text("ein Hund\nleer\n \nletzte\n", encoding="utf8")
    pairs = read_parallel(source, target)
    assert pairs == [("a dog", "ein Hund"), ("", "leer"), ("it rains", " "), ("last", "letzte")]
    assert read_parallel(source, target, drop_empty=True) == [pairs[0], pairs[3]]
    target.write_text("ein Hund\n", encoding="utf8")
    with pytest.raises(errors.DataError, match=r"a\.en has 4 lines and .*a\.de 1"):
        read_parallel(source, target)
    with pytest.raises(errors.DataError, match=r"a\.fr cannot be read"):
        read_parallel(source, tmp_path / "a.fr")


def test_documents(tmp_path):
    path = tmp_path / "reviews.tsv"
    path.write_text("5\tIt works .\tWell !\t\n\ngood or bad\tall in one\n", encoding="utf8")
    first, second = read_documents(path)
    assert first == ("5", [["It", "works", "."], ["Well", "!"]])
    assert second.label == "good or bad" and second.sentences == [["all", "in", "one"]]
    for text in ("5 no tab", "5\t", "\ttext", " \ttext"):
        path.write_text(f"1\ta\n{text}\n", encoding="utf8")
        with pytest.raises(errors.DataError, match=r"reviews\.tsv, line 2: .*label<TAB>sentence is required"):
            read_documents(path)


def test_parallel_corpus():
    folder = corpus("multi30k")
    pairs = read_parallel(folder / "train.en", folder / "train.de")
    assert len(pairs) == 29_000 and pairs[0][0].split()[:3] == ["two", "young", ","]
    assert read_parallel(folder / "train.en", folder / "train.de", drop_empty=True) == pairs
    with pytest.raises(errors.DataError, match="29000 lines and .* 1014"):
        read_parallel(folder / "train.en", folder / "val.de")


def test_treebank():
    folder = corpus("sst")
    trees = [len(read_trees(folder / f"{part}.txt")) for part in ("train", "dev", "test")]
    assert trees == [8544, 1101, 2210]


def test_tagged_corpus():
    sentences = read_tagged(corpus("ner") / "dev.txt")
    assert len(sentences) == 1696
    assert {tag.split("-")[-1] for _, tags in sentences for tag in tags} == {"O", "PER", "LOC", "ORG", "MISC"}
