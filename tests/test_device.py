"""Devices in Python: where graphs, parameters and optimizers are, what goes to and fro, what is refused."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lazynet as ln
from lazynet.device import is_device_name, register

from .emulated import EmulatedArray, EmulatedRuntime

RNG = np.random.default_rng(0)


@pytest.fixture
def device() -> ln.Device:
    return ln.device("emulated")


def array_on(device: ln.Device, values: Any) -> EmulatedArray:
    values = np.asarray(values, np.float32)
    array: EmulatedArray = device.runtime.empty(values.shape, values.dtype)  # type: ignore[union-attr]
    return array.set(values)


# ---- names


def test_devices_by_name(device: ln.Device) -> None:
    assert ln.device("cpu") is ln.device("cpu")
    assert ln.device("emulated:0") is device and ln.device(device) is device
    assert repr(device) == "<Device emulated:0>"
    assert ln.Graph(device=device).device is device
    assert pickle.loads(pickle.dumps(device)) is device
    assert ln.device("cpu").statistics() == (0, 0, 0)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:", "cpu:1", "", 3])
def test_unknown_devices_are_refused(name: Any) -> None:
    with pytest.raises((ln.errors.NodeValueError, ln.errors.NodeTypeError), match="device: "):
        ln.Graph(device=name)


def test_without_a_gpu_cuda_says_what_is_missing() -> None:
    if ln.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ln.errors.DeviceError, match=r"CuPy is not installed; pip install|NVIDIA GPU and its driver"):
        ln.Graph(device="cuda")
    with pytest.raises(ln.errors.DeviceError):
        ln.Parameter((2, 2), device="cuda")
    with pytest.raises(ln.errors.DeviceError):
        ln.nn.Linear(2, 2).to("cuda")


def test_default_device(device: ln.Device) -> None:
    before = ln.device()
    try:
        ln.set_default_device(device)
        assert ln.Graph().device is device and ln.Parameter((2, 2)).device is device
        assert ln.nn.Linear(2, 3).weight.device is device
    finally:
        ln.set_default_device(before)


# ---- parameters


def test_values_of_parameters(device: ln.Device) -> None:
    values = RNG.normal(size=(3, 4)).astype(np.float32)
    p = ln.Parameter(values, device=device, name="w")
    assert repr(p) == "<Parameter w (3, 4) float32 on emulated:0>"
    np.testing.assert_array_equal(p.value, values)
    with pytest.raises(ValueError, match="read-only"):
        p.value[0] = 0
    p.value = values + 1
    np.testing.assert_array_equal(p.value, values + 1)
    with pytest.raises(ln.errors.ShapeError):
        p.value = values[0]
    assert p.grad is None


def test_moving_a_module(device: ln.Device) -> None:
    model = ln.nn.Linear(3, 4)
    before = {name: p.value.copy() for name, p in model.named_parameters()}
    optimizer = ln.optim.SGD(model.parameters(), 0.1)
    assert model.to(device) is model
    for name, p in model.named_parameters():
        assert p.device is device
        np.testing.assert_array_equal(p.value, before[name])
    with pytest.raises(ln.errors.NodeTypeError, match="on emulated:0 after the optimizer was made"):
        optimizer.step()
    model.to("cpu", "float64")
    assert model.weight.device is ln.device("cpu") and model.weight.dtype == np.float64
    model.to("float32", "emulated")
    assert model.weight.device is device and model.weight.dtype == np.float32
    other = copy.deepcopy(model)
    assert other.weight.device is device
    np.testing.assert_array_equal(other.weight.value, model.weight.value)


@pytest.mark.parametrize("targets", [(), ("cpu", "cpu"), ("float32", "float64"), ("cpu", "float32", "float64")])
def test_to_refuses_what_is_no_target(targets: tuple[str, ...]) -> None:
    with pytest.raises(ln.errors.NodeTypeError, match="to: "):
        ln.nn.Linear(2, 2).to(*targets)


def test_to_an_unknown_type_changes_nothing(device: ln.Device) -> None:
    model = ln.nn.Linear(2, 2)
    with pytest.raises(ln.errors.NodeTypeError):
        model.to(device, "int8")
    assert model.weight.device is ln.device("cpu")
    assert not is_device_name("float32")


def test_a_graph_and_its_parameters_are_on_one_device(device: ln.Device) -> None:
    with pytest.raises(ln.errors.DeviceError, match="it is on cpu; this graph is on emulated:0"):
        ln.Graph(device=device).parameter(ln.Parameter((2, 2), device="cpu", name="w"))
    with pytest.raises(ln.errors.DeviceError, match="parameter w: it is on emulated:0; this graph is on cpu"):
        ln.Graph(device="cpu").parameter(ln.Parameter((2, 2), device=device, name="w"))


def test_backward_of_a_graph_that_read_a_moved_parameter_is_refused(device: ln.Device) -> None:
    p = ln.Parameter(np.ones((1, 3)), device=device)
    graph = ln.Graph(device=device)
    loss = ln.sum(graph.parameter(p) * 2.0)
    p.convert(device="cpu")
    with pytest.raises(ln.errors.GraphError):
        graph.backward(loss)


# ---- arrays of other libraries


def test_inputs_from_the_device(device: ln.Device) -> None:
    graph = ln.Graph(device=device)
    matrix, vector, number = array_on(device, [[1, 2, 3], [4, 5, 6]]), array_on(device, [1, 2]), array_on(device, 7.0)
    x = graph.input(matrix, requires_grad=True)
    np.testing.assert_array_equal((x * 2.0).value, [[2, 4, 6], [8, 10, 12]])
    assert graph.input(vector).shape == (1, 2) and graph.input(number).item() == 7.0
    graph.backward(ln.sum(x * x))
    np.testing.assert_allclose(x.grad, [[2, 4, 6], [8, 10, 12]])
    p = ln.Parameter((2, 3), device=device)
    p.value = matrix
    np.testing.assert_array_equal(p.value, matrix.get())


def test_arrays_that_do_not_fit_are_refused(device: ln.Device) -> None:
    graph, array = ln.Graph(device=device), array_on(device, [[1, 2], [3, 4]])
    with pytest.raises(ln.errors.NodeTypeError, match="on a GPU is given"):
        ln.Graph(device="cpu").input(array)
    with pytest.raises(ln.errors.NodeTypeError, match="float64 is required"):
        ln.Graph(device=device, dtype="float64").input(array)
    strided = array_on(device, [[1, 2], [3, 4]])
    strided.__cuda_array_interface__["strides"] = (4, 8)
    with pytest.raises(ln.errors.NodeTypeError, match="contiguous"):
        graph.input(strided)
    strided.__cuda_array_interface__["strides"] = (8, 4)
    assert graph.input(strided).shape == (2, 2)
    with pytest.raises(ln.errors.ShapeError):
        graph.input(array_on(device, np.zeros((1, 2, 3))))


def test_values_for_other_libraries(device: ln.Device) -> None:
    graph = ln.Graph(device=device)
    wide = graph.input(np.arange(12.0).reshape(3, 4))
    view = ln.tanh(wide)[:, 1:3]
    np.testing.assert_array_equal(view.cupy().get(), view.value)  # the emulated device's arrays stand in for CuPy's
    assert view.__dlpack_device__() == (2, 0)
    p = ln.Parameter(np.ones((2, 3)), device=device)
    interface = p.__cuda_array_interface__
    assert interface["shape"] == (2, 3) and interface["typestr"] == "<f4"
    again = graph.input(p)
    np.testing.assert_array_equal(again.value, np.ones((2, 3)))
    with pytest.raises(ln.errors.DeviceError):
        ln.Graph(device="cpu").constant(1.0).cupy()
    assert not hasattr(ln.Parameter((1, 1), device="cpu"), "__cuda_array_interface__")


def test_dlpack_on_the_cpu() -> None:
    graph = ln.Graph(device="cpu")
    np.testing.assert_array_equal(np.from_dlpack(graph.input([[1.0, 2.0]])), [[1, 2]])
    p = ln.Parameter([[1.0, 2.0]], device="cpu")
    np.from_dlpack(p)
    assert p.__dlpack_device__() == (1, 0)


# ---- training


OPTIMIZERS = [
    lambda p: ln.optim.SGD(p, 0.1),
    lambda p: ln.optim.SGD(p, 0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    lambda p: ln.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    lambda p: ln.optim.Adagrad(p, 0.1, weight_decay=0.01),
    lambda p: ln.optim.Adam(p, 0.1, weight_decay=0.01),
    lambda p: ln.optim.AdamW(p, 0.1),
]


@pytest.mark.parametrize("make", OPTIMIZERS, ids=["sgd", "momentum", "nesterov", "adagrad", "adam", "adamw"])
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_optimizers_equal_the_cpu(device: ln.Device, make: Any, max_norm: float | None) -> None:
    start = [RNG.normal(size=shape) for shape in ((3, 5), (1, 1), (40, 33), (7,))]
    weights = [RNG.normal(size=value.shape) for value in start]

    def train(where: Any) -> tuple[list[np.ndarray], list[float]]:
        parameters = [ln.Parameter(value, device=where) for value in start]
        optimizer, graph, norms = make(parameters), ln.Graph(device=where), []
        for _ in range(3):
            with graph:
                losses = [
                    ln.sum(ln.tanh(graph.parameter(p)) * np.atleast_2d(w))
                    for p, w in zip(parameters, weights, strict=True)
                ]
                graph.backward(ln.sum(losses))
            norms.append(optimizer.step(max_norm) or 0.0)
            assert all(p.grad is None for p in parameters)
        return [p.value for p in parameters], norms

    expected, expected_norms = train("cpu")
    given, norms = train(device)
    for a, b in zip(expected, given, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
    assert norms == pytest.approx(expected_norms, rel=1e-5)


def test_clip_grad_norm(device: ln.Device) -> None:
    def clipped(where: Any) -> np.ndarray:
        p, graph = ln.Parameter(np.arange(1.0, 7).reshape(2, 3), device=where), ln.Graph(device=where)
        graph.backward(ln.sum(ln.square(graph.parameter(p))))
        assert ln.optim.clip_grad_norm([p], 1.0) == pytest.approx(2 * np.sqrt(91))
        return np.array(p.grad)

    np.testing.assert_allclose(clipped(device), clipped("cpu"), rtol=1e-5)


def test_a_checkpoint_of_one_device_loads_on_the_other(device: ln.Device, tmp_path: Path) -> None:
    def trained(where: Any) -> tuple[ln.nn.LayerNorm, ln.optim.Adam, ln.Graph]:
        model = ln.nn.LayerNorm(5)
        model.to(where)
        return model, ln.optim.Adam(model.parameters(), 0.1), ln.Graph(device=where)

    def step(model: ln.nn.LayerNorm, optimizer: ln.optim.Adam, graph: ln.Graph) -> None:
        with graph:
            p, q = graph.parameter(model.weight), graph.parameter(model.bias)
            graph.backward(ln.sum(ln.exp(p) + ln.tanh(q + 1.0)))
        optimizer.step()

    for source, target in (("cpu", device), (device, "cpu")):
        model, optimizer, graph = trained(source)
        step(model, optimizer, graph)
        ln.save(tmp_path / "x.safetensors", model=model, optimizer=optimizer)
        other, other_optimizer, other_graph = trained(target)
        ln.load(tmp_path / "x.safetensors", model=other, optimizer=other_optimizer)
        step(model, optimizer, graph)
        step(other, other_optimizer, other_graph)
        np.testing.assert_allclose(other.weight.value, model.weight.value, rtol=1e-6)
        np.testing.assert_allclose(other.bias.value, model.bias.value, rtol=1e-6)


# ---- launches


def test_schedules_that_come_again_are_replayed(device: ln.Device) -> None:
    graph = ln.Graph(device=device)

    def run(number: float) -> np.ndarray:
        with graph:
            xs = [graph.input(np.full((1 + j, 3), number)) for j in range(3)]
            ys = [ln.tanh(x * 0.5) + ln.exp(x) for x in xs]
            graph.forward()
            return ys[2].value

    before = device.statistics()
    device.replay_schedules(True)
    try:
        for i in range(10):
            np.testing.assert_allclose(run(0.1 * i), np.tanh(0.05 * i) + np.exp(0.1 * i), rtol=1e-5)
        after = device.statistics()
        run(0.0)
        assert after.replays > before.replays
        assert device.statistics().launches == after.launches  # all of the last run was one replay
    finally:
        device.replay_schedules(False)
    np.testing.assert_allclose(run(0.3), np.tanh(0.15) + np.exp(0.3), rtol=1e-5)


def test_launches_of_64_examples_are_those_of_one(device: ln.Device) -> None:
    def launches(examples: int) -> int:
        graph = ln.Graph(device=device)
        xs = [graph.input(np.ones((1 + i % 5, 4))) for i in range(examples)]
        ys = [ln.tanh(x) * x for x in xs]
        before = device.statistics().launches
        graph.forward(*ys)
        device.synchronize()
        return device.statistics().launches - before

    assert launches(64) == launches(1) == 2


def test_a_nan_is_found_where_it_is_born(device: ln.Device) -> None:
    graph = ln.Graph(device=device)
    with ln.detect_anomaly():
        x = graph.input([[1.0, -1.0]])
        y = ln.log(x)
        with pytest.raises(ln.errors.NonFiniteError, match="log"):
            ln.exp(y).value  # noqa: B018
        with pytest.raises(ln.errors.NonFiniteError, match="input"):
            graph.input(array_on(device, [[np.nan]]))


def test_out_of_memory_leaves_the_graph_usable(device: ln.Device) -> None:
    graph = ln.Graph(device=device, memory_limit=1 << 20)
    with pytest.raises(ln.errors.OutOfMemoryError):
        ln.exp(graph.constant(1.0, 1000, 1000)).value  # noqa: B018
    graph.clear()
    assert ln.exp(graph.input([[0.0]])).item() == 1.0


# ---- kernels for a GPU, which needs none


def test_kernels_are_compiled_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "NVRTC is not there: pip install 'lazynet[cuda13]'"
    cupy = pytest.importorskip("cupy", reason=why)
    try:
        cupy.cuda.nvrtc.getVersion()
    except Exception:  # CuPy without the library
        pytest.skip(why)
    monkeypatch.setenv("LAZYNET_CACHE", str(tmp_path))
    defines = "LN_ONLY_FLOAT LN_PICK=tanh"
    image = ln.cuda.compile_kernels("elementwise", None, defines, "90")
    assert image.startswith(b"\x7fELF")
    [kept] = (tmp_path / "kernels").iterdir()
    kept.write_bytes(b"what is kept is used")
    assert ln.cuda.compile_kernels("elementwise", None, defines, "90") == b"what is kept is used"
    assert ln.cuda.compile_kernels("elementwise", None, defines, "80").startswith(b"\x7fELF")
    assert len(list((tmp_path / "kernels").iterdir())) == 2
    # A GPU that is newer than NVRTC gets code that the driver translates.
    assert b".target sm_" in ln.cuda.compile_kernels("elementwise", None, defines, "999")
    with pytest.raises(ln.errors.DeviceError, match="compute capability 20"):
        ln.cuda.compile_kernels("elementwise", None, defines, "20")
    with pytest.raises(ln.errors.DeviceError, match="error"):
        ln.cuda.compile_kernels("own", "this is no program", "", "90")
    monkeypatch.setenv("LAZYNET_CACHE", str(kept))  # no folder: nothing is kept, all works
    assert ln.cuda.compile_kernels("elementwise", None, defines, "90").startswith(b"\x7fELF")


def test_an_error_of_the_compiler_reaches_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(EmulatedRuntime):
        def compile(self, family: str, source: str | None, defines: str) -> bytes:
            raise RuntimeError(f"{family} {defines} is beyond me")

    register("broken", Broken)
    graph = ln.Graph(device="broken")
    y = ln.tanh(graph.input([[1.0]]))
    with pytest.raises(
        ln.errors.DeviceError,
        match="elementwise cannot be compiled: RuntimeError: elementwise LN_ONLY_FLOAT LN_PICK=tanh",
    ):
        y.value  # noqa: B018
    with pytest.raises(ln.errors.DeviceError, match="cannot be compiled"):
        graph.forward()
    graph.clear()
    np.testing.assert_array_equal(graph.input([[1.0, 2.0]]).value, [[1, 2]])
