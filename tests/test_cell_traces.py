"""What a cell is traced as, when it is traced again, whose trace it is, and how long it lives."""

import copy
import functools
import gc
import pickle
import weakref
from collections import OrderedDict, deque

import numpy as np
import pytest

import lazynet as ln
from lazynet import errors


@pytest.fixture(autouse=True)
def cells_on():
    before = ln.set_cells(True)
    yield
    ln.set_cells(before)


def value(node):
    return node.value.tolist()


@ln.cell
def doubled(x):
    return x + x


class Scaled(ln.Module):
    def __init__(self, factor=2.0):
        self.factor = ln.Parameter([factor])

    @ln.cell
    def forward(self, x):
        return x * self.factor

    @ln.cell
    def step(self, x, states):
        for state in states:
            x = x + state
        return x * self.factor


# ---- whose trace it is


def test_cells_of_one_name_are_told_apart():
    def times(factor):
        return ln.cell(lambda self, x: x * factor)

    class Two(ln.Module):
        twice, thrice = times(2.0), times(3.0)

    two, x = Two(), ln.Graph().input([[1.0]])
    for _ in range(2):
        assert value(two.twice(x)) == [[2.0]] and value(two.thrice(x)) == [[3.0]]
    assert two.twice == two.twice and two.twice != two.thrice and two.twice != Two().twice
    assert len({two.twice, two.twice, two.thrice}) == 2


def test_super_and_calls_through_the_class():
    class Base(ln.Module):
        @ln.cell
        def forward(self, x):
            return x * 2.0

    class Derived(Base):
        @ln.cell
        def forward(self, x):
            return super().forward(x) + 1.0

    derived, x = Derived(), ln.Graph().input([[1.0]])
    for _ in range(2):
        assert value(derived(x)) == [[3.0]]
        assert value(Base.forward(derived, x)) == [[2.0]] and value(Derived.forward(derived, x)) == [[3.0]]
    assert derived(x).op == Base.forward(derived, x).op == "cell"


def test_a_shallow_copy_is_another_object():
    class Plain:
        def __init__(self, factor):
            self.factor = factor

        @ln.cell
        def call(self, x):
            return x * self.factor

    first, x = Plain(2.0), ln.Graph().input([[1.0]])
    assert value(first.call(x)) == [[2.0]]
    second = copy.copy(first)
    second.factor = 3.0
    for _ in range(2):
        assert value(second.call(x)) == [[3.0]] and value(first.call(x)) == [[2.0]]
    assert value(copy.deepcopy(second).call(x)) == [[3.0]]


def test_objects_without_room_for_traces():
    class Slots:
        __slots__ = ()

        @ln.cell
        def call(self, x):
            return x + 1.0

    assert value(Slots().call(ln.Graph().input([[1.0]]))) == [[2.0]]


def test_bound_cells_keep_their_object_and_dropped_ones_go_at_once():
    graph = ln.Graph()
    x = graph.input([[1.0], [2.0]])
    assert value(Scaled()(x)) == value(Scaled().forward(x)) == [[2.0], [4.0]]
    held = Scaled().forward
    assert value(held(x)) == value(held(x)) == [[2.0], [4.0]]
    for _ in range(2):
        assert value(ln.recur(Scaled().step, [[], [0]], x)[1]) == [[8.0]]
    gc.collect()
    gc.disable()
    try:
        model = Scaled()
        model(x), ln.recur(model.step, [[], [0]], x)
        gone = weakref.ref(model)
        del model
        assert gone() is None
        held = Scaled().forward
        held(x)
        gone = weakref.ref(held.__self__)
        del held
        assert gone() is None
    finally:
        gc.enable()
    model = Scaled()
    model.itself = model.forward
    model(x)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


# ---- the number of rows


ROW_DEPENDENT = {
    "first": lambda x: x - x[0],
    "last": lambda x: x * 1.0 + x[-1],
    "split": lambda x: ln.sum(ln.split(x, x.rows, axis=0)),
    "reshape": lambda x: ln.tanh(ln.reshape(x, 1, -1)),
    "scaled": lambda x: x * (1.0 / x.rows),
    "scaled a little": lambda x: x * (1.0 + 1e-9 * x.rows),
    "branch": lambda x: x * 2.0 if x.rows > 1 else -x,
    "branch far away": lambda x: x * 2.0 if x.rows > 50 else -x,
    "outputs": lambda x: [x * 2.0] * x.rows,
    "raises": lambda x: x * 2.0 if x.rows < 3 else x[100] + x,
    "parameters": lambda x: x * TWO[min(x.rows, 2) - 1],
}
TWO = ln.Parameter([1.0], dtype="float64"), ln.Parameter([2.0], dtype="float64")


@pytest.mark.parametrize("name", ROW_DEPENDENT)
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_what_depends_on_the_number_of_rows_is_no_cell(name, order):
    function = ROW_DEPENDENT[name]
    made = ln.cell(function)
    graph = ln.Graph(dtype="float64")
    for rows in order:
        x = graph.input(np.arange(2.0 * rows).reshape(rows, 2) + 1)
        try:
            expected = function(x)
        except errors.LazyNetError as error:
            with pytest.raises(type(error)):
                made(x)
            continue
        result = made(x)
        for a, b in zip(*(each if isinstance(each, list) else [each] for each in (result, expected)), strict=True):
            np.testing.assert_array_equal(a.value, b.value)
    assert "plain nodes" in made.explain()
    if order[0] == 1:
        assert "depends on the number of rows" in made.explain()


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 0, 1, 0)])
def test_inputs_of_unequal_rows_run_as_plain_nodes(order):
    added = ln.cell(lambda x, y: x + y)
    graph = ln.Graph()
    x = graph.input(np.ones((3, 2)))
    others = graph.input(np.full((3, 2), 2.0)), graph.input([[2.0, 2.0]])
    for which in order:
        result = added(x, others[which])
        assert (result.value == 3).all() and (result.op == "cell") == (which == 0)


def test_an_initial_state_of_two_rows_repeats_the_row():
    model, graph = Scaled(), ln.Graph()
    x, start = graph.input([[1.0], [2.0]]), graph.input([[1.0], [3.0]])
    for _ in range(2):
        for initial in (start[0], start):
            states = ln.recur(model.step, [[], [0]], x, initial=initial)
            assert value(states[1]) == [[4 * (1 + row) + 4] for row in value(initial) for row in row]


def test_no_rows():
    made, x = ln.cell(lambda x: ln.tanh(x) * 2.0), ln.Graph().input(np.zeros((0, 3)))
    assert made(x).value.shape == (0, 3)


# ---- what was read while it was traced


class Listed(ln.Module):
    def __init__(self):
        self.layers = [Scaled(2.0), Scaled(3.0)]
        self.named = {"a": Scaled(5.0), "nested": {"numbers": [1.0, (2.0, [7.0])]}}
        self.numbers = [1.0, 2.0]
        self.pair = (1.0, 2.0)

    @ln.cell
    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(x) + float(index + 1)
        x = self.named["a"](x) * self.named["nested"]["numbers"][1][1][0]
        return x * self.numbers[0]

    @ln.cell
    def step(self, x, states):
        return self.forward.function(ln.sum([x, *states]))

    @ln.cell
    def paired(self, x):
        return x * self.pair[1]


CHANGES = {
    "pop": lambda m: m.layers.pop(),
    "reverse": lambda m: m.layers.reverse(),
    "set": lambda m: m.layers.__setitem__(0, m.layers[1]),
    "dict": lambda m: m.named.__setitem__("a", Scaled(11.0)),
    "number": lambda m: m.numbers.__setitem__(0, 7.0),
    "sign": lambda m: m.numbers.__setitem__(0, -0.0),
    "nested": lambda m: m.named["nested"]["numbers"][1][1].__setitem__(0, 3.0),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("recursion", [False, True])
def test_changes_inside_lists_and_dicts_are_noticed(name, recursion):
    model, graph = Listed(), ln.Graph()
    x = graph.input([[1.5], [0.5]])

    def run():
        result = ln.recur(model.step, [[], [0]], x)[1] if recursion else model(x)
        return result.value

    def plain():
        ln.set_cells(False)
        expected = run()
        ln.set_cells(True)
        return expected

    for _ in range(3):
        np.testing.assert_array_equal(run(), plain())
    before = plain()
    CHANGES[name](model)
    assert (plain() != before).any()
    for _ in range(3):
        np.testing.assert_array_equal(run(), plain())
    assert model(x).op == "cell"


def test_equal_numbers_are_no_change():
    model, x = Listed(), ln.Graph().input([[1.5]])
    model(x)
    traces = model.forward._traces.by_key
    (before,) = traces.values()
    for _ in range(3):
        model.numbers[0] = float("1.0")
        model(x)
    assert list(traces.values()) == [before] and before.contents()
    model.layers.pop()
    assert not before.contents() and not before.contents()
    model.layers.append(Scaled(3.0))
    assert not before.contents()


def test_other_kinds_of_containers():
    class Kinds(ln.Module):
        def __init__(self):
            self.chosen, self.queue, self.ordered = {"a"}, deque([1.0]), OrderedDict(a=1.0, b=2.0)

        @ln.cell
        def forward(self, x):
            first = next(iter(self.ordered.values()))
            return x * (2.0 if "a" in self.chosen else 3.0) * self.queue[0] * first * self.scale

        scale = 1.0

    model, x = Kinds(), ln.Graph().input([[1.0]])
    model.scale = 5.0
    expected = 10.0
    for change, factor in (
        (lambda: None, 1.0),
        (lambda: model.chosen.clear(), 1.5),
        (lambda: model.queue.appendleft(7.0), 7.0),
        (lambda: model.ordered.move_to_end("a"), 2.0),
        (lambda: model.ordered.update(b=6.0), 3.0),
        (lambda: delattr(model, "scale"), 0.2),
    ):
        change()
        expected *= factor
        for _ in range(2):
            assert model(x).item() == pytest.approx(expected, rel=1e-6)


def test_a_list_that_is_too_long_to_compare():
    class Table(ln.Module):
        def __init__(self):
            self.numbers = [float(i) for i in range(5000)]

        @ln.cell
        def forward(self, x):
            return x * self.numbers[3]

    table, x = Table(), ln.Graph().input([[1.0]])
    for number in (3.0, 4.0):
        table.numbers[3] = number
        assert value(table(x)) == [[number]]
    assert "more than 1000 items" in table.forward.explain()


# ---- options


def test_options_are_told_apart_by_type_and_sign():
    @ln.cell
    def scaled(x, option):
        return x * 2.0 if option is True else x / option if isinstance(option, float) else x * 3.0

    x = ln.Graph().input([[1.0]])
    assert value(scaled(x, 1)) == [[3.0]] and value(scaled(x, True)) == [[2.0]] and value(scaled(x, 1.0)) == [[1.0]]
    added, zero = ln.cell(lambda x, option: x * option), ln.Graph().input([[1.0]])
    assert not np.signbit(added(zero, 0.0).value) and np.signbit(added(zero, -0.0).value)

    class Step(ln.Module):
        @ln.cell
        def step(self, x, states, option):
            return x * 2.0 if option is True else x * 3.0

    for _ in range(2):
        for option, expected in ((1, 3.0), (True, 2.0)):
            assert value(ln.recur(Step().step, [[]], x, option)[0]) == [[expected]]


def test_traces_are_bounded():
    class Option:
        pass

    model, x = ln.cell(lambda x, option: x + 1.0), ln.Graph(train=False).input([[1.0]])
    gone = []
    for index in range(400):
        option = Option()
        gone.append(weakref.ref(option))
        with x.graph:
            assert value(model(x.graph.input([[float(index)]]), option)) == [[index + 1.0]]
        del option
    assert sum(each() is not None for each in gone) <= 300
    assert len(model._traces.by_key) <= 256
    for _ in range(2):
        x = x.graph.input([[1.0]])
        assert value(model(x, 2)) == [[2.0]]


# ---- copies, pickles, what may be a cell


def test_operators_and_cells_copy_and_pickle():
    class Holder(ln.Module):
        def __init__(self):
            self.activation, self.cell, self.scaled = ln.tanh, doubled, Scaled()
            self.bound, self.local = self.scaled.forward, ln.cell(lambda x: -x)
            self.whole = ln.cell(self.scaled)

    holder = Holder()
    x = ln.Graph().input([[0.5]])
    holder.bound(x)
    twin = copy.deepcopy(holder)
    assert twin.activation is ln.tanh and twin.cell is doubled and twin.local is holder.local
    assert twin.bound.__self__ is twin.scaled and twin.bound == twin.scaled.forward
    twin.scaled.factor.value = [7.0]
    assert value(twin.bound(x)) == value(twin.whole(x)) == [[3.5]] and value(holder.bound(x)) == [[1.0]]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(doubled, protocol)) is doubled
        assert pickle.loads(pickle.dumps([ln.tanh, ln.linear], protocol)) == [ln.tanh, ln.linear]
    model = Scaled(3.0)
    assert pickle.loads(pickle.dumps(Scaled.forward)) is Scaled.forward
    assert value(pickle.loads(pickle.dumps(model.forward))(x)) == [[1.5]]
    model.activation, model.other = ln.sigmoid, doubled
    again = pickle.loads(pickle.dumps(model))
    assert again.activation is ln.sigmoid and again.other is doubled and value(again(x)) == [[1.5]]
    assert copy.copy(doubled) is doubled


def test_callables_that_are_no_functions():
    x = ln.Graph().input([[1.0]])
    scale = functools.partial(lambda factor, x: x * factor, 3.0)
    linear = ln.nn.Linear(1, 1)
    for made, name in ((ln.cell(linear), "Linear"), (ln.cell(scale), "lambda"), (ln.cell(Scaled().forward), "forward")):
        assert made(x).op == "cell" and name in repr(made) and name in made.explain()
    assert ln.cell(doubled) is doubled and ln.cell(ln.tanh)(x).op == "cell"
    assert not {"weight", "training"} & set(vars(ln.cell(linear)))
    for what, text in (
        (3, "cell: 3 is given"),
        (None, "None is given"),
        (Scaled, "the class Scaled is given"),
        (staticmethod(lambda x: x), "@staticmethod above"),
        (classmethod(lambda cls, x: x), "@classmethod above"),
    ):
        with pytest.raises(errors.NodeTypeError, match=text):
            ln.cell(what)


# ---- messages


def test_messages_name_the_cell_and_the_cause():
    graph = ln.Graph()
    x, outside, kept = graph.input([[1.0]]), graph.input([[2.0]]), []

    @ln.cell
    def captures(y):
        return y + outside

    @ln.cell
    def captures_first(y):
        return outside * y

    @ln.cell
    def leaks(y):
        kept.append(y * 2.0)
        return ln.tanh(y)

    for function in (captures, captures_first):
        with pytest.raises(errors.TraceError, match="a node from outside"):
            function(x)
    leaks(x)
    for use in (lambda: x + kept[0], lambda: kept[0] + x, lambda: kept[0].value, lambda: doubled(kept[0]).value):
        with pytest.raises(errors.TraceError, match="made while a cell was traced"):
            use()
    with pytest.raises(errors.TraceError, match="cell doubled: no argument"):
        doubled()
    with pytest.raises(errors.TraceError, match="cell doubled: a parameter"):
        doubled(ln.Parameter([1.0]))
    with pytest.raises(errors.TraceError, match="cell Scaled.forward: an argument"):
        Scaled().forward(x, {})
    with pytest.raises(errors.TraceError, match="cell <lambda>: the function returned str"):
        ln.cell(lambda x: "")(x)
    assert repr(Scaled.forward) == "<cell Scaled.forward>" and "of Scaled" in repr(Scaled().forward)


def test_errors_at_the_rows_at_hand_are_raised():
    made, graph = ln.cell(lambda x: x[4] + x[4]), ln.Graph()
    with pytest.raises(errors.NodeIndexError):
        made(graph.input([[1.0]]))
    assert value(made(graph.input(np.ones((5, 1))))) == [[2.0]]
    with pytest.raises(errors.ShapeError):
        ln.cell(lambda x, y: x + y)(graph.input(np.ones((1, 2))), graph.input(np.ones((1, 3))))


# ---- plans and gradients


@pytest.mark.parametrize("cells", [True, False])
def test_plans_with_two_cells_of_one_name_are_right(cells):
    ln.set_cells(cells)
    graph = ln.Graph()
    pair, first = [ln.nn.GRUCell(2, 2), ln.nn.GRUCell(2, 2)], graph.input([[1.0, 2.0]])
    states = [first, first]
    for _ in range(3):
        states = [cell(first, state) for cell, state in zip(pair, states, strict=True)]
    outputs, _ = ln.nn.LSTM(2, 3, bidirectional=True)(graph.input(np.ones((4, 2))))
    plan = graph.plan(ln.sum(states), outputs)
    plan.verify()
    plan.batches.reverse()
    with pytest.raises(errors.GraphError):
        plan.verify()


class Heads(ln.Module):
    """Three outputs; each reads other inputs and parameters."""

    def __init__(self):
        ln.seed(0)
        self.left, self.right = (ln.nn.Linear(2, 3, dtype="float64") for _ in range(2))
        self.scale, self.norm = ln.Parameter([2.0] * 3, dtype="float64"), ln.nn.LayerNorm(3, dtype="float64")

    @ln.cell
    def forward(self, x, y):
        left = self.left(x)
        return ln.tanh(left), self.norm(self.right(y)) * self.scale, left * 2.0


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("count", [1, 4])
def test_what_the_loss_does_not_depend_on_has_no_gradient(used, count):
    model = Heads()

    def run(cells):
        ln.set_cells(cells)
        graph = ln.Graph(dtype="float64")
        rng = np.random.default_rng(0)
        inputs = [graph.input(rng.normal(size=(2, 2)), requires_grad=True) for _ in range(2 * count)]
        hidden = [ln.sin(x) for x in inputs]
        outputs = [model(x, y) for x, y in zip(hidden[::2], hidden[1::2], strict=True)]
        graph.forward()
        graph.backward(
            ln.sum([ln.sum(ln.square(out[k]), axis=None) for out in outputs[: count // 2 + 1] for k in used]),
            retain_grad=True,
        )
        model_gradients = [None if p.grad is None else p.grad.copy() for p in model.parameters()]
        model.zero_grad()
        return [node.grad for node in (*inputs, *hidden)] + model_gradients

    for made, expected in zip(run(True), run(False), strict=True):
        assert (made is None) == (expected is None)
        if made is not None:
            np.testing.assert_allclose(made, expected, rtol=1e-10)


def test_gradients_of_one_output_of_a_state():
    lstm, graph = ln.nn.LSTM(2, 2), ln.Graph()
    for _ in range(2):
        _, finals = lstm(graph.input(np.ones((3, 2))))
        graph.backward(ln.sum(finals[0].h))
        assert all(p.grad is not None and np.isfinite(p.grad).all() for p in lstm.parameters())


def test_a_model_that_was_converted_between_forward_and_backward():
    model, graph = ln.nn.LSTM(2, 2), ln.Graph()
    loss = ln.sum(model(graph.input(np.ones((3, 2))))[0], axis=None)
    graph.forward()
    model.to("float64")
    with pytest.raises(errors.GraphError, match="backward: parameter .* was given another element type"):
        graph.backward(loss)
    unnamed = ln.Parameter([1.0], dtype="float64")
    with pytest.raises(errors.NodeTypeError, match=r"a parameter without a name of shape \(1, 1\): its elements"):
        graph.input([[1.0]]) * unnamed


def test_an_anomaly_in_a_cell_names_the_operation():
    weight = ln.Parameter(np.eye(2))

    @ln.cell
    def made(x, y):
        left, right = ln.split(x @ weight, 2)
        return ln.tanh(y) + ln.exp(left), ln.log(right) * 2.0

    graph = ln.Graph()
    made(graph.input([[1.0, 1.0]]), graph.input([[1.0]]))
    for options in ({}, {"train": False}, {"eager": True}):
        with (
            ln.detect_anomaly(),
            pytest.raises(errors.NonFiniteError, match=r"cell: .*; in the cell, log: the value of"),
        ):
            graph = ln.Graph(**options)
            ln.sum(made(graph.input([[1.0, -1.0]] * 3)[1:], graph.input(np.ones((2, 1))))[1], axis=None).item()
