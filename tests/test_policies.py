"""Policies: what is learned, saved and loaded, and how few batches each makes."""

import json

import numpy as np
import pytest

import lazynet as ln
from benchmarks.structures import MODELS, minibatch
from lazynet import errors


def named(name):
    ln.seed(1)
    model = MODELS[name]()
    model.parameters()
    return model


def shown(model, graph, seeds=range(4), size=6):
    for seed in seeds:
        minibatch(model, graph, seed, size)
        yield graph


def batches(model, policy, seeds=range(100, 104), size=6):
    graph = ln.Graph(policy=policy)
    plans = [graph.plan(minibatch(model, graph, seed, size)) for seed in seeds]
    for plan in plans[-1:]:
        plan.verify()
    return sum(len(plan.batches) for plan in plans), sum(plan.lower_bound for plan in plans)


@pytest.mark.parametrize("name", MODELS)
def test_a_learned_policy_on_graphs_that_it_has_not_seen(name):
    model, policy, graph = named(name), ln.batching.FiniteState(), ln.Graph()
    minibatch(model, graph, 0, 2)  # traces the cells
    learning = ln.batching.learn(policy, shown(model, graph))
    assert learning.lower_bound <= learning.learned <= min(learning.agenda, learning.lookahead)
    learned, bound = batches(model, policy)
    agenda, _ = batches(model, "agenda")
    assert bound <= learned <= agenda
    if name in ("chains", "trees"):
        assert learned == bound
    else:
        assert learned < agenda and learned <= bound * 1.06


def test_lookahead_runs_what_is_safe_first():
    model = named("lattices")
    lookahead, bound = batches(model, "lookahead")
    assert lookahead <= bound * 1.1 < batches(model, "agenda")[0]


def test_numbers_under_a_learned_policy(tmp_path):
    model, policy, graph = named("mixed"), ln.batching.FiniteState(), ln.Graph(dtype="float32")
    ln.batching.learn(policy, shown(model, graph), trials=20)
    results = []
    for each in ("none", policy):
        graph = ln.Graph(policy=each)
        loss = minibatch(model, graph, 9, 4)
        graph.backward(loss)
        results.append([loss.value, *(p.grad.copy() for p in model.parameters())])
        for parameter in model.parameters():
            parameter.zero_grad()
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_saved_policy_serves_another_model_object(tmp_path):
    model, policy, graph = named("lattices"), ln.batching.FiniteState(), ln.Graph()
    ln.batching.learn(policy, shown(model, graph))
    assert len(policy) > 0
    path = tmp_path / "policy.json"
    policy.save(path)
    loaded = ln.batching.FiniteState.load(path)
    assert repr(loaded) == repr(policy)
    other = named("lattices")
    assert batches(other, loaded) == batches(model, policy)
    # Signatures that it never met: it falls back, and the numbers are right.
    trees = named("trees")
    assert batches(trees, loaded) == batches(trees, policy.fallback)


def test_a_policy_learned_later_is_a_new_schedule():
    model, policy = named("lattices"), ln.batching.FiniteState()
    graph = ln.Graph(policy="agenda")
    before = [len(graph.plan(minibatch(model, graph, 5, 6)).batches) for _ in range(3)]  # cached
    ln.batching.learn(policy, shown(model, ln.Graph()))
    graph.policy = policy
    assert len(graph.plan(minibatch(model, graph, 5, 6)).batches) < before[-1]
    assert graph.policy is policy


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no json", "no finite-state policy"),
        ({"format": "other"}, "format"),
        ({"format": "lazynet finite-state policy 1"}, "has no 'signatures'"),
        ({"fallback": "best", "signatures": [], "states": []}, "'best' is given"),
        ({"fallback": "depth", "signatures": [], "states": []}, "as fallback"),
        ({"fallback": "agenda", "signatures": ["a"], "states": [{"run": 3, "safe": [], "ready": []}]}, "out of range"),
        (
            {"fallback": "agenda", "signatures": ["a"], "states": [{"run": 0, "safe": [], "ready": []}]},
            "not in its state",
        ),
    ],
)
def test_files_that_are_no_policy(tmp_path, content, message):
    path = tmp_path / "policy.json"
    if isinstance(content, dict):
        content = json.dumps({"format": "lazynet finite-state policy 1", **content})
    path.write_text(content)
    with pytest.raises(errors.NodeValueError, match=message):
        ln.batching.FiniteState.load(path)


def test_what_learn_refuses():
    policy, graph = ln.batching.FiniteState(), ln.Graph()
    with pytest.raises(errors.NodeValueError, match="no graphs"):
        ln.batching.learn(policy, [])
    with pytest.raises(errors.GraphError, match="nothing to compute"):
        ln.batching.learn(policy, [graph])
    with pytest.raises(errors.NodeTypeError, match="FiniteState is required"):
        ln.batching.learn("agenda", [graph])
    with pytest.raises(errors.NodeTypeError, match="a Graph is required"):
        ln.batching.learn(policy, [model := named("trees"), model])
    with pytest.raises(errors.NodeValueError, match="trials"):
        ln.batching.learn(policy, [graph], trials=0)
