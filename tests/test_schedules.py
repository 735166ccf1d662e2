"""Learning-rate schedules, compared with PyTorch where it has them, and early stopping."""

import json
import math

import numpy as np
import pytest

import lazynet as ln
from lazynet import errors
from lazynet.optim import CosineLR, EarlyStopping, InverseSquareRootLR, ReduceLROnPlateau, StepLR, WarmupLR


def optimizer(lr=0.5):
    return ln.optim.SGD([ln.Parameter([1.0], name="w")], lr=lr)


def rates(schedule, steps):
    result = []
    for _ in range(steps):
        schedule.optimizer.step()
        result.append(schedule.optimizer.lr)
        schedule.step()
    return result


def torch_rates(make, steps, lr=0.5):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    peer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=lr)
    schedule = make(torch.optim.lr_scheduler, peer)
    result = []
    for _ in range(steps):
        peer.step()
        result.append(peer.param_groups[0]["lr"])
        schedule.step()
    return result


PEERS = [
    (lambda o: StepLR(o, 3), lambda t, o: t.StepLR(o, 3)),
    (lambda o: StepLR(o, step_size=1, gamma=0.9), lambda t, o: t.StepLR(o, step_size=1, gamma=0.9)),
    (lambda o: CosineLR(o, 20), lambda t, o: t.CosineAnnealingLR(o, 20)),
    (lambda o: CosineLR(o, 20, eta_min=0.01), lambda t, o: t.CosineAnnealingLR(o, 20, eta_min=0.01)),
    (lambda o: WarmupLR(o, 8), lambda t, o: t.LinearLR(o, start_factor=1 / 8, total_iters=7)),
    (
        lambda o: CosineLR(o, 20, warmup=5),
        lambda t, o: t.SequentialLR(
            o, [t.LinearLR(o, start_factor=1 / 5, total_iters=4), t.CosineAnnealingLR(o, 15)], milestones=[5]
        ),
    ),
    (
        lambda o: InverseSquareRootLR(o, 6),
        lambda t, o: t.LambdaLR(o, lambda s: min((s + 1) / 6, math.sqrt(6 / (s + 1)))),
    ),
    (
        lambda o: InverseSquareRootLR(o, 6, d_model=512),
        lambda t, o: t.LambdaLR(o, lambda s: 512**-0.5 * min((s + 1) ** -0.5, (s + 1) * 6**-1.5)),
    ),
]


@pytest.mark.torch
@pytest.mark.parametrize("case", range(len(PEERS)))
def test_rates_equal_torch(case):
    make, make_peer = PEERS[case]
    np.testing.assert_allclose(rates(make(optimizer()), 20), torch_rates(make_peer, 20), rtol=1e-12, atol=1e-15)


PLATEAUS = [
    {"patience": 2},
    {"patience": 0, "factor": 0.5, "threshold": 0.05},
    {"patience": 1, "mode": "max", "threshold": 0.1, "threshold_mode": "abs"},
    {"patience": 1, "mode": "max", "cooldown": 2, "factor": 0.5},
    {"patience": 0, "threshold_mode": "abs", "threshold": 0.2, "min_lr": 0.01},
    {"patience": 0, "factor": 0.5, "eps": 0.05},
]


@pytest.mark.torch
@pytest.mark.parametrize("options", PLATEAUS)
def test_plateau_equals_torch(options):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    metrics = np.random.default_rng(2).normal(size=60).round(1) - np.linspace(0, 1, 60)
    metrics[7] = math.nan
    peer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    peer_schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(peer, **options)
    schedule = ReduceLROnPlateau(optimizer(), **options)
    seen = set()
    for metric in metrics:
        schedule.step(metric)
        peer_schedule.step(metric)
        assert schedule.optimizer.lr == peer.param_groups[0]["lr"]
        seen.add(schedule.optimizer.lr)
    assert len(seen) > 2


def test_the_cosine_stays_at_its_minimum():
    schedule = CosineLR(optimizer(), 4, eta_min=0.1)
    assert rates(schedule, 12)[4:] == pytest.approx([0.1] * 8)


SCHEDULES = [
    lambda o: StepLR(o, 2, 0.5),
    lambda o: CosineLR(o, 9, 2, 0.01),
    lambda o: WarmupLR(o, 6),
    lambda o: InverseSquareRootLR(o, 3),
]


@pytest.mark.parametrize("make", SCHEDULES)
def test_formulas_go_on_from_their_state(make):
    whole = rates(make(optimizer()), 10)
    first = make(optimizer())
    rates(first, 5)
    state = json.loads(json.dumps(first.state_dict()))
    second = make(optimizer(lr=0.123))
    second.load_state_dict(state)
    assert rates(second, 5) == whole[5:]


def test_plateau_goes_on_from_its_state():
    def make():
        return ReduceLROnPlateau(optimizer(), factor=0.5, patience=1, cooldown=1)

    metrics = [3.0, 2.0, 2.5, 2.5, 2.5, 2.5, 2.5, 1.0, 2.0, 2.0, 2.0]
    whole, first, second = make(), make(), make()
    for metric in metrics:
        whole.step(metric)
    assert json.loads(json.dumps(make().state_dict()))["best"] == math.inf
    for metric in metrics[:6]:
        first.step(metric)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for metric in metrics[6:]:
        second.step(metric)
    assert second.state_dict() == whole.state_dict() and whole.optimizer.lr == 0.0625


def test_schedules_mistakes():
    for build in (
        lambda: WarmupLR(optimizer(), 0),
        lambda: InverseSquareRootLR(optimizer(), 0),
        lambda: InverseSquareRootLR(optimizer(), 5, d_model=0),
        lambda: CosineLR(optimizer(), 5, warmup=5),
        lambda: StepLR(optimizer(), 0),
        lambda: ReduceLROnPlateau(optimizer(), mode="best"),
        lambda: ReduceLROnPlateau(optimizer(), factor=1.0),
        lambda: ReduceLROnPlateau(optimizer(), threshold_mode="x"),
        lambda: EarlyStopping(0),
        lambda: EarlyStopping(1, mode="best"),
        lambda: EarlyStopping(1, min_delta=-1),
    ):
        with pytest.raises(errors.NodeValueError, match="is given; .* is required"):
            build()
    with pytest.raises(errors.NodeTypeError, match="an optimizer is required"):
        StepLR(ln.nn.Linear(2, 2), 5)
    schedule = StepLR(optimizer(), 5)
    with pytest.raises(errors.StateDictError, match="missing: base_lr, steps; unexpected: best"):
        schedule.load_state_dict(ReduceLROnPlateau(optimizer(lr=3.0)).state_dict())
    assert schedule.optimizer.lr == 0.5


def test_early_stopping_counts_what_is_no_better():
    stopping = EarlyStopping(patience=2, min_delta=0.1)
    answers = [(stopping.update(value), stopping.stop) for value in (math.nan, 3.0, 2.95, 2.8, math.nan, 2.75)]
    assert answers == [
        (False, False),
        (True, False),
        (False, False),
        (True, False),
        (False, False),
        (False, True),
    ]
    assert stopping.best == 2.8
    highest = EarlyStopping(patience=1, mode="max")
    assert [highest.update(value) for value in (1.0, 2.0, 2.0)] == [True, True, False] and highest.stop


def test_early_stopping_restores_a_copy_of_the_best_model():
    model, stopping = ln.nn.Linear(2, 2), EarlyStopping(patience=3)
    with pytest.raises(errors.StateDictError, match="nothing is kept"):
        stopping.restore(model)
    stopping.update(2.0, model)
    best = model.state_dict()
    model.weight.value += 1
    stopping.update(3.0, model)
    fresh, other = EarlyStopping(patience=3), ln.nn.Linear(2, 2)
    fresh.load_state_dict(stopping.state_dict())
    for each, target in ((stopping, model), (fresh, other)):
        each.restore(target)
        target.weight.value[0] += 1
        each.restore(target)
        np.testing.assert_array_equal(target.weight.value, best["weight"])
        assert (each.best, each.num_bad) == (2.0, 1)
    stopping.update(1.0)
    with pytest.raises(errors.StateDictError, match="nothing is kept"):
        stopping.restore(model)
    with pytest.raises(errors.StateDictError, match="missing: num_bad; unexpected: lr"):
        fresh.load_state_dict({"best": None, "lr": 3})
