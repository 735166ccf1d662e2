"""The examples of structures learn something from the sentences that they generate themselves."""

import pytest

import lazynet as ln
from examples import hierarchical_documents, lattice_lstm, transition_parser


@pytest.fixture(autouse=True)
def threads():
    before = ln.num_threads()
    yield
    ln.set_num_threads(before)


def test_transition_parser(tmp_path):
    path = tmp_path / "parser.safetensors"
    figures = transition_parser.main(["--quick", "--epochs", "6", "--threads", "1", "--save", str(path)])
    assert figures["uas"] > 0.9 and figures["las"] > 0.9
    assert figures["kernels"] * 10 < figures["nodes"]
    assert "SHIFT" in ln.load(path).extra["actions"]


def write_treebank(folder):
    """Two files as English EWT has them, a genre at the head of a document's id."""
    for seed, part in enumerate(("dev", "test")):
        lines = []
        for number, sentence in enumerate(transition_parser.generate(24, seed)):
            if number % 3 == 0:
                lines.append(f"# newdoc id = {('email', 'reviews')[number % 2]}-{number}")
            for word in sentence.words:
                row = (word.id, word.form, word.lemma, word.upos, "_", "_", word.head, word.deprel, "_", "_")
                lines.append("\t".join(map(str, row)))
            lines.append("")
        (folder / f"en_ewt-ud-{part}.conllu").write_text("\n".join(lines) + "\n")


def test_of_files(tmp_path):
    write_treebank(tmp_path)
    options = ["--data", str(tmp_path), "--epochs", "1", "--dim", "8", "--threads", "1"]
    assert 0 <= transition_parser.main(options)["las"] <= transition_parser.main(options)["uas"] <= 1
    assert hierarchical_documents.main(options)["constant"] == 0.5
    for part in ("train", "val"):
        (tmp_path / f"{part}.en").write_text("two men walk .\na man walks two dogs .\n" * 3)
    assert set(lattice_lstm.main(options)) == {"f1", "f1_alone"}


def test_tags_of_words():
    assert lattice_lstm.tags_of(["a", "man", "is"]) == ["S-W", "B-W", "I-W", "E-W", "B-W", "E-W"]


def test_oracle_actions_make_the_tree():
    sentences = transition_parser.generate(20, seed=3)
    model = transition_parser.Parser(sentences, [transition_parser.oracle(sentence) for sentence in sentences], 8)
    for sentence in sentences:
        state = transition_parser.State(model, ln.Graph(), sentence)
        for action in transition_parser.oracle(sentence):
            state.apply(action)
        assert state.tree.heads == sentence.heads
        assert state.relations == transition_parser.relations_of(sentence)


def test_sentences_parse_alike_alone_and_together():
    ln.seed(0)
    sentences = transition_parser.generate(8, seed=3)
    model = transition_parser.Parser(
        sentences, [transition_parser.oracle(sentence) for sentence in sentences], 8
    ).eval()
    together = [state.tree.heads for state in model.parse(ln.Graph(), sentences)]
    assert together == [model.parse(ln.Graph(), [sentence])[0].tree.heads for sentence in sentences]


def test_lattice_lstm(tmp_path):
    path = tmp_path / "segmenter.safetensors"
    figures = lattice_lstm.main(["--quick", "--threads", "1", "--save", str(path)])
    assert figures["f1"] > 0.6 and figures["f1"] > figures["f1_alone"] + 0.3
    assert ln.load(path).extra["words"][0] == "<unk>"


def test_hierarchical_documents(tmp_path):
    path = tmp_path / "documents.safetensors"
    figures = hierarchical_documents.main(["--quick", "--epochs", "7", "--threads", "1", "--save", str(path)])
    assert figures["constant"] < 0.3 and figures["accuracy"] > 0.85 and figures["attended"] > 0.9
    assert len(ln.load(path).extra["classes"]) == 5
