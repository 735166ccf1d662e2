"""The translation examples in their quick form: they learn a toy language, save, and go on from what they saved."""

import importlib

import pytest

pytest.importorskip("sacrebleu", reason="sacrebleu is not installed: pip install sacrebleu")


@pytest.mark.parametrize("name", ["translate_lstm_attention", "translate_transformer"])
def test_quick_form_learns_and_goes_on(name, tmp_path, capsys):
    program = importlib.import_module(f"examples.{name}")
    file = str(tmp_path / "model.safetensors")
    first = program.main(["--quick", "--seed", "1", "--save", file])
    assert first["perplexity"] < 1.5 and first["bleu"] > 60
    again = program.main(["--quick", "--seed", "1", "--save", file, "--epochs", "1", "--beam", "1"])
    assert again["perplexity"] < 1.5
    assert "BLEU" in capsys.readouterr().out


def test_without_a_corpus_it_says_what_is_needed():
    from examples import translate_transformer

    with pytest.raises(SystemExit, match="--data FOLDER"):
        translate_transformer.main([])
