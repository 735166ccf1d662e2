"""Checkpoints: resuming gives the same bits, files are whole or not written, what does not fit changes nothing."""

import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import lazynet as ln
from lazynet import _checkpoint_file, errors

ROOT = Path(__file__).resolve().parent.parent


class Tagger(ln.Module):
    """Sparse table, recurrence, dropout and a tied weight."""

    def __init__(self, dtype="float32", turned=False):
        if turned:
            self.also = self.out = ln.nn.Linear(6, 4, dtype=dtype)
        self.embed = ln.nn.Embedding(9, 6, dtype=dtype)
        self.rnn = ln.nn.LSTM(6, 6, dtype=dtype)
        if not turned:
            self.out = self.also = ln.nn.Linear(6, 4, dtype=dtype)

    def loss(self, graph, words):
        hidden = ln.dropout(self.rnn(ln.dropout(self.embed(graph, words), 0.3))[0], 0.5)
        return ln.cross_entropy(self.out(hidden), [word % 4 for word in words], reduction="sum")


class Training:
    """Everything that one run has, made afresh."""

    def __init__(self, seed=0, optimizer=ln.optim.Adam, dtype="float32", turned=False, **options):
        ln.seed(seed)
        self.model = Tagger(dtype, turned)
        self.optimizer = optimizer(self.model.parameters(), lr=0.05, **options)
        self.schedule = ln.optim.CosineLR(self.optimizer, 12, warmup=3)
        self.graph = ln.Graph(seed=seed, dtype=dtype)

    def everything(self):
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "graph": self.graph}

    def train(self, steps):
        for step in steps:
            with self.graph:
                losses = [
                    self.model.loss(self.graph, [(step * k + j) % 9 for j in range(1 + (step + k) % 4)]) for k in (1, 2)
                ]
                self.graph.backward(ln.sum(losses))
            self.optimizer.step(max_norm=5.0)
            self.schedule.step()

    def bits(self):
        """Of all that a further step depends on."""
        state = {**self.model.state_dict(), **self.optimizer.state_dict()}
        arrays = {name: (np.asarray(value).tobytes()) for name, value in state.items()}
        return arrays, self.schedule.state_dict(), self.graph.random_state


def generator_state():
    return ln.init.generator().bit_generator.state


OPTIMIZERS = [
    (ln.optim.Adam, {}),
    (ln.optim.AdamW, {"weight_decay": 0.1}),
    (ln.optim.Adagrad, {}),
    (ln.optim.SGD, {"momentum": 0.9, "dampening": 0.1}),
    (ln.optim.SGD, {}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
def test_resuming_gives_the_same_bits(tmp_path, optimizer, options, dtype):
    whole = Training(optimizer=optimizer, dtype=dtype, **options)
    whole.train(range(10))
    first = Training(optimizer=optimizer, dtype=dtype, **options)
    first.train(range(5))
    path = tmp_path / "last.safetensors"
    drawn = generator_state()
    ln.save(path, **first.everything(), step=5)
    second = Training(seed=99, optimizer=optimizer, dtype=dtype, **options)
    second.train(range(3))
    checkpoint = ln.load(path, **second.everything())
    assert generator_state() == drawn
    second.train(range(checkpoint.step, 10))
    assert second.bits() == whole.bits()


def test_resuming_in_a_fresh_process_gives_the_same_bits(tmp_path):
    whole, first = Training(), Training()
    whole.train(range(10))
    first.train(range(5))
    ln.save(tmp_path / "half", **first.everything(), step=5)
    program = (
        "import sys, lazynet as ln\n"
        "from tests.test_saving import Training\n"
        f"ln.set_num_threads({ln.num_threads()})\n"
        "run = Training(seed=5)\n"
        "run.train(range(ln.load(sys.argv[1], **run.everything()).step, 10))\n"
        "ln.save(sys.argv[2], **run.everything())\n"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "half"), str(tmp_path / "whole")]
    subprocess.run(arguments, check=True, cwd=ROOT, timeout=300)
    second = Training(seed=7)
    ln.load(tmp_path / "whole", **second.everything())
    assert second.bits() == whole.bits()


def test_an_optimizer_that_has_moved_on_goes_back_to_its_first_step(tmp_path):
    first = Training()
    ln.save(tmp_path / "start", **first.everything())
    first.train(range(4))
    wanted = first.bits()
    ln.load(tmp_path / "start", **first.everything())
    first.train(range(4))
    assert first.bits() == wanted


def test_state_survives_another_order_of_parameters(tmp_path):
    first, second = Training(), Training(seed=3, turned=True)
    first.train(range(5))
    ln.save(tmp_path / "last", **first.everything())
    ln.load(tmp_path / "last", **second.everything())
    assert [p.shape for p in first.optimizer.parameters] != [p.shape for p in second.optimizer.parameters]
    first.train(range(5, 8))
    second.train(range(5, 8))
    state, other = first.model.state_dict(), second.model.state_dict()
    assert {name: value.tobytes() for name, value in state.items()} == {n: v.tobytes() for n, v in other.items()}


def test_a_model_alone_and_a_look(tmp_path):
    run = Training()
    run.train(range(2))
    path = tmp_path / "last"
    ln.save(path, **run.everything(), step=np.int64(2), accuracy=np.float32(0.5), words=["a", "b"], best=None)
    drawn, fresh = generator_state(), Tagger()
    ln.init.generator().random()
    moved = generator_state()
    checkpoint = ln.load(path, model=fresh)
    assert generator_state() == moved != drawn
    np.testing.assert_array_equal(fresh.embed.weight.value, run.model.embed.weight.value)
    looked = ln.load(path)
    assert looked == checkpoint
    assert looked.step == 2 and looked.extra == {"accuracy": 0.5, "words": ["a", "b"], "best": None}
    assert looked.kinds == {"model": "Tagger", "optimizer": "Adam", "schedule": "CosineLR", "graph": "Graph"}
    assert looked.shapes["model.embed.weight"] == (9, 6)
    assert looked.shapes["optimizer.model.embed.weight.first_moment"] == (9, 6)
    arrays = safetensors.numpy.load_file(path)
    np.testing.assert_array_equal(arrays["model.embed.weight"], run.model.embed.weight.value)


def test_several_models_parameters_and_other_objects(tmp_path):
    def make(seed):
        ln.seed(seed)
        models = {"encoder": ln.nn.Linear(3, 2), "head": ln.nn.Linear(2, 1, dtype="float64")}
        scale = ln.Parameter((1, 2), ln.init.normal(), dtype="float64")
        adam = ln.optim.Adam(models["encoder"].parameters())
        sgd = ln.optim.SGD([*models["head"].parameters(), scale], lr=0.1, momentum=0.5)
        return {**models, "scale": scale, "adam": adam, "sgd": sgd, "stopping": ln.optim.EarlyStopping(3)}

    first, second = make(0), make(1)
    first["stopping"].update(0.5, first["encoder"])
    graph = ln.Graph(dtype="float64")
    graph.backward(ln.sum(first["head"](graph.parameter(first["scale"]))))
    first["sgd"].step()
    first["adam"].lr = 0.25
    ln.save(tmp_path / "all", **first)
    ln.load(tmp_path / "all", **second)
    for name in ("encoder", "head"):
        for key, value in second[name].state_dict().items():
            np.testing.assert_array_equal(value, first[name].state_dict()[key])
    np.testing.assert_array_equal(second["scale"].value, first["scale"].value)
    assert second["adam"].lr == 0.25
    np.testing.assert_array_equal(second["sgd"].state_dict()["2.momentum"], first["sgd"].state_dict()["2.momentum"])
    restored = ln.nn.Linear(3, 2)
    second["stopping"].restore(restored)
    np.testing.assert_array_equal(restored.weight.value, first["encoder"].weight.value)
    ln.load(tmp_path / "all", head=second["head"])


class Wider(Tagger):
    def __init__(self):
        super().__init__()
        self.out = self.also = ln.nn.Linear(6, 5)
        self.extra = ln.nn.Linear(2, 2, bias=False)


def test_what_does_not_fit_is_listed_and_changes_nothing(tmp_path):
    run = Training()
    run.train(range(3))
    ln.save(tmp_path / "last", **run.everything(), step=3)
    other = Training(seed=2)
    other.model = Wider()
    other.optimizer = ln.optim.Adam(other.model.parameters())
    before = other.bits()
    with pytest.raises(errors.StateDictError) as caught:
        ln.load(tmp_path / "last", **other.everything())
    text = str(caught.value)
    for part in (
        "model: missing: extra.weight; misshapen: ",
        "out.weight (4, 6) of float32 instead of (5, 6)",
        "optimizer: missing: model.extra.weight.steps; misshapen: ",
        "model.also.weight.first_moment (4, 6) of float32 instead of (5, 6)",
    ):
        assert part in text
    assert other.bits() == before


def test_nothing_is_half_loaded_where_a_schedule_refuses(tmp_path):
    class Refusing(ln.optim.StepLR):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            if self.steps == 3:
                raise ValueError("not this one")

    def make():
        run = Training(seed=4)
        run.second = Refusing(run.optimizer, 5)
        return run

    run, other = make(), make()
    run.train(range(2))
    run.second.steps = 3
    run.optimizer.lr = 0.125
    ln.save(tmp_path / "last", **run.everything(), second=run.second)
    before = other.bits()
    with pytest.raises(errors.StateDictError, match="second: not this one"):
        ln.load(tmp_path / "last", **other.everything(), second=other.second)
    assert other.bits() == before and other.second.steps == 0


def test_objects_that_are_not_in_the_file_or_of_another_kind(tmp_path):
    run = Training()
    path = tmp_path / "last"
    ln.save(path, model=run.model, optimizer=run.optimizer, accuracy=0.5)
    adamw = ln.optim.AdamW(run.model.parameters())
    for targets, text in (
        ({"net": run.model}, "net: it is not in the file, which holds model, optimizer"),
        ({"model": run.model, "schedule": run.schedule}, "schedule: it is not in the file"),
        ({"accuracy": 0.5}, "accuracy: it is not in the file"),
        ({"model": run.model, "optimizer": adamw}, "optimizer: AdamW is given; Adam, as in the file, is required"),
        ({"optimizer": run.optimizer}, "updates embed.weight, .*, of no module that is given"),
        ({"model": 3}, "model: int is given; a module"),
    ):
        with pytest.raises(errors.StateDictError, match=text):
            ln.load(path, **targets)
    with pytest.raises(errors.StateDictError, match="of no module that is given"):
        ln.save(path, optimizer=run.optimizer)
    for name, value in (("graphs", object()), ("words", {1, 2}), ("node", ln.Node), ("table", np.ones((2, 2)))):
        with pytest.raises(errors.NodeTypeError, match=f"save: {name} is .*JSON value is required"):
            ln.save(path, **{name: value})
    with pytest.raises(errors.NodeValueError, match="without a dot is required"):
        ln.save(path, **{"a.b": 1})
    ln.load(path, model=run.model, optimizer=run.optimizer)


def test_element_types_are_converted_only_if_asked(tmp_path):
    single, double = Training(), Training(dtype="float64", seed=1)
    single.train(range(2))
    ln.save(tmp_path / "last", **single.everything())
    before = double.bits()
    with pytest.raises(
        errors.StateDictError,
        match=r"mistyped: embed.weight float32 instead of float64.*optimizer: mistyped: model.*float32",
    ):
        ln.load(tmp_path / "last", **double.everything())
    assert double.bits() == before
    ln.save(tmp_path / "double", model=double.model)
    with pytest.raises(errors.StateDictError, match="mistyped: .*also.bias float64 instead of float32"):
        ln.load(tmp_path / "double", model=single.model)
    ln.load(tmp_path / "last", **double.everything(), cast=True)
    state, wanted = double.model.state_dict(), single.model.state_dict()
    assert all(state[name].dtype == np.float64 and (state[name] == wanted[name]).all() for name in wanted)
    moment = "0.first_moment"
    np.testing.assert_array_equal(double.optimizer.state_dict()[moment], single.optimizer.state_dict()[moment])


def test_frozen_and_empty_parameters(tmp_path):
    def make(seed):
        ln.seed(seed)
        model = ln.nn.Linear(3, 2)
        model.empty = ln.Parameter((0, 3))
        model.weight.trainable = False
        return model, ln.optim.Adam(model.parameters(), lr=0.1)

    model, optimizer = make(0)
    graph = ln.Graph()
    graph.backward(ln.sum(model(graph.input([[1.0, 2.0, 3.0]]))))
    optimizer.step()
    ln.save(tmp_path / "last", model=model, optimizer=optimizer)
    other, second = make(1)
    ln.load(tmp_path / "last", model=other, optimizer=second)
    np.testing.assert_array_equal(other.weight.value, model.weight.value)
    assert second.state_dict().keys() == optimizer.state_dict().keys()


# ---- the file


@pytest.fixture
def saved(tmp_path):
    """A file of step 1, and what saves step 2 over it."""
    path = tmp_path / "last.safetensors"
    model = ln.nn.Linear(40, 40)
    ln.save(path, model=model, step=1)
    return path, lambda: ln.save(path, model=model, step=2)


def unharmed(path):
    assert os.listdir(path.parent) == [path.name]
    assert ln.load(path, model=ln.nn.Linear(40, 40)).step == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file(saved, monkeypatch, call, error):
    path, save = saved

    def fail(*_):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises((errors.CheckpointError, KeyboardInterrupt), match="No space|^$"):
            save()
    unharmed(path)
    save()
    assert ln.load(path).step == 2


def test_a_full_disk_leaves_the_old_file(saved):
    path, save = saved
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))  # in the midst of the arrays
    try:
        with pytest.raises(errors.CheckpointError, match="last.safetensors cannot be written: File too large"):
            save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    unharmed(path)


def test_the_file_is_synced_before_it_is_renamed(saved, monkeypatch):
    path, save = saved
    events = []
    fsync, replace = os.fsync, os.replace

    def record_sync(descriptor):
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def record_rename(source, target):
        assert os.path.dirname(source) == str(path.parent)
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_rename)
    save()
    assert events == ["file", "rename", "folder"]


def test_links_are_followed_and_the_umask_holds(saved):
    path, _ = saved
    link = path.parent / "link"
    link.symlink_to(path.name)
    ln.save(link, step=7)
    assert link.is_symlink() and ln.load(path).step == 7
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_files_that_cannot_be_read_or_written(saved):
    path, _ = saved
    with pytest.raises(errors.CheckpointError, match="absent cannot be read: "):
        ln.load(path.parent / "absent")
    with pytest.raises(errors.CheckpointError, match="cannot be read"):
        ln.load(path.parent)
    with pytest.raises(errors.CheckpointError, match="cannot be written: Is a directory"):
        ln.save(path.parent, step=1)
    with pytest.raises(errors.CheckpointError, match="cannot be written: No such file"):
        ln.save(path.parent / "absent" / "file", step=1)
    unharmed(path)


def test_damaged_files(saved):
    path, _ = saved
    whole = path.read_bytes()
    model = ln.nn.Linear(40, 40)
    before = model.weight.value.copy()
    rng = np.random.default_rng(0)
    damaged = [whole[:length] for length in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1)]
    header = 8 + int.from_bytes(whole[:8], "little")
    for place in [*range(header), *rng.integers(header, len(whole), 200)]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.integers(8)
        damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        try:
            ln.load(path, model=model)
        except errors.CheckpointError:
            np.testing.assert_array_equal(model.weight.value, before)
        else:  # only spaces that fill the header up
            assert json.loads(content[8:header]) == json.loads(whole[8:header]) and content[header:] == whole[header:]


def test_foreign_and_newer_files(saved, monkeypatch):
    path, save = saved
    safetensors.numpy.save_file({"weight": np.ones(3)}, path)
    with pytest.raises(errors.CheckpointError, match="not written by save.*safetensors.numpy.load_file"):
        ln.load(path)
    path.write_text("step: 3")
    with pytest.raises(errors.CheckpointError, match="damaged, or was not written by save"):
        ln.load(path)
    with monkeypatch.context() as patched:
        patched.setattr(_checkpoint_file, "_FORMAT", 2)
        save()
    with pytest.raises(errors.CheckpointError, match="of format 2; at most 1 is required: update LazyNet"):
        ln.load(path)


def test_the_same_state_gives_the_same_file(saved):
    path, save = saved
    save()
    first = path.read_bytes()
    save()
    assert path.read_bytes() == first
