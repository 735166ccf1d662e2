"""The examples run on data that they generate, learn from it, and go on from a checkpoint as if they had not stopped."""

import pytest

from examples import language_model, ner_bilstm_crf, sentiment_treelstm

QUICK = {
    sentiment_treelstm: ["--epochs", "4", "--embedding", "32", "--hidden", "48", "--dropout", "0.1", "--lr", "0.004"],
    ner_bilstm_crf: ["--epochs", "5", "--embedding", "16", "--filters", "24", "--hidden", "24", "--dropout", "0.2"],
    language_model: ["--epochs", "4", "--batch", "300", "--dim", "32", "--dropout", "0.1", "--lr", "0.01"],
}


def run(example, *options):
    return example.main(["--quick", "--threads", "1", *QUICK[example], *options])


def test_sentiment_learns():
    figures = run(sentiment_treelstm)
    assert figures["losses"][-1] < 0.8 * figures["losses"][0]
    assert figures["test_root"] > 0.2  # of ten classes
    assert figures["test_nodes"] > 0.5


def test_tagger_finds_names_that_it_has_not_seen():
    figures = run(ner_bilstm_crf)
    assert figures["losses"][-1] < 0.5 * figures["losses"][0]
    assert figures["test_f1"] > 0.8


@pytest.mark.parametrize("options", [[], ["--transformer"], ["--transformer", "--window", "3"]], ids=" ".join)
def test_language_model_learns(options):
    figures = run(language_model, *options)
    assert figures["dev_perplexity"] < 4 < figures["vocabulary"]
    assert figures["test_perplexity"] < 4
    assert all(figures["samples"])


@pytest.mark.parametrize("example", QUICK, ids=lambda example: example.__name__.rpartition(".")[2])
def test_resumed_training_gives_the_same_figures(example, tmp_path, monkeypatch):
    whole = run(example)
    path = str(tmp_path / "last.safetensors")
    # Stops in the middle: the third epoch is interrupted.
    train_epoch = example.train_epoch

    def interrupted(*arguments):
        if arguments[-1] == 3:
            raise KeyboardInterrupt
        return train_epoch(*arguments)

    monkeypatch.setattr(example, "train_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(example, "--save", path)
    monkeypatch.undo()
    resumed = run(example, "--resume", path)
    kept = {"losses", "perplexities"} & whole.keys()
    for name in kept:
        assert resumed[name] == whole[name][2:]
    assert {**resumed, **dict.fromkeys(kept)} == {**whole, **dict.fromkeys(kept)}


@pytest.mark.parametrize("example", QUICK, ids=lambda example: example.__name__.rpartition(".")[2])
def test_data_or_quick_is_required(example, capsys):
    with pytest.raises(SystemExit):
        example.main([])
    assert "--data" in capsys.readouterr().err
