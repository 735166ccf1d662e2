"""The real corpora that some tests read."""

import os
from pathlib import Path

import pytest

SOURCES = {
    "conllu": "UD English EWT, en_ewt-ud-{dev,test}.conllu, from universaldependencies.org",
    "multi30k": "Multi30k task 1, {train,val}.{en,de}, from github.com/multi30k/dataset",
    "ner": "WikiNER as word|tag lines, {train,dev}.txt, from schwa.org",
    "sst": "the binarised Stanford sentiment treebank, {train,dev,test}.txt, from nlp.stanford.edu/sentiment",
}


def corpus(name: str) -> Path:
    """Its folder; the test skips where there is none."""
    folder = os.environ.get("LAZYNET_DATA")
    if not folder:
        pytest.skip(f"LAZYNET_DATA is not set; set it to a folder that holds {name}/: {SOURCES[name]}")
    if not (Path(folder) / name).is_dir():
        pytest.skip(f"LAZYNET_DATA={folder} holds no {name}/: {SOURCES[name]}")
    return Path(folder) / name
