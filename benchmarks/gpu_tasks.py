"""One task of benchmarks.gpu, in a process of its own: the same model in both libraries, compared, then timed in turn."""

import json
import math
import statistics
import time
import traceback
from collections.abc import Callable
from itertools import islice
from types import ModuleType
from typing import NamedTuple

import numpy as np

import lazynet as ln
from benchmarks import common, generated, roofs, seq2seq, tagger, transformer, treelstm

LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-4, 1e-3
WARM_UP, TRIAL = 5, 5  # steps


# ---- products of one training step: forward, and twice as many operations backward


def tree_products(batch, words) -> float:
    dim = treelstm.DIM
    nodes = sum(sum(1 for _ in tree.postorder()) for tree in batch)
    leaves = (nodes + len(batch)) // 2
    return 6 * (leaves * 3 * dim * dim + (nodes - leaves) * (6 + 2) * dim * dim + nodes * dim * treelstm.CLASSES)


def tagger_products(batch, words, tags) -> float:
    dim, hidden = tagger.DIM, tagger.HIDDEN
    return 6 * sum(len(words) for words, _ in batch) * (2 * 8 * dim * dim + 2 * dim * hidden + hidden * tags)


def seq2seq_products(batch, source_words, target_words) -> float:
    embed, dim = seq2seq.EMBED, seq2seq.DIM
    step = 4 * dim * (embed + dim)
    return 6 * sum(
        len(source) * step + (len(target) - 1) * (step + 2 * dim * len(source) + dim * (2 * dim + target_words))
        for source, target in batch
    )


def transformer_products(batch, source_words, target_words) -> float:
    dim, inner = transformer.DIM, transformer.INNER

    def example(source: int, target: int) -> float:
        encoder = source * (4 * dim * dim + 2 * dim * inner) + 2 * dim * source * source
        decoder = target * (6 * dim * dim + 2 * dim * inner) + source * 2 * dim * dim
        attention = dim * target * (target + 1) + 2 * dim * source * target  # causal, and to the source
        return transformer.LAYERS * (encoder + decoder + attention) + target * dim * target_words

    return 6 * sum(example(len(source), len(target) - 1) for source, target in batch)


# ---- tasks


class Task(NamedTuple):
    module: ModuleType  # its constants are the model's sizes, read when a model is made
    batch: int
    rate: float
    corpus: Callable  # of arguments, as in common
    random: Callable  # of a number of examples and numbers of words
    words: int  # numbers of words that random takes
    lazynet: Callable  # of data and what else the corpus gives
    torch: str  # a class of torch_models
    products: Callable
    quick: dict  # sizes with which the emulator keeps up
    bucketed: bool = False


TREES = Task(
    treelstm, 50, 1e-3, common.trees, generated.trees, 1, lambda data, words: treelstm.TreeLSTM(words), "TreeLSTM",
    tree_products, {"DIM": 16},
)  # fmt: skip
TRANSLATION = Task(
    transformer, 64, 3e-4, common.parallel, generated.parallel, 2, lambda data, *words: transformer.Translator(*words),
    "Transformer", transformer_products, {"DIM": 32, "LAYERS": 1, "INNER": 64},
)  # fmt: skip
TASKS = {
    "treelstm": TREES,
    "treelstm-whole": TREES._replace(lazynet=lambda data, words: treelstm.WholeTreeLSTM(words, data)),
    "tagger": Task(
        tagger, 50, 1e-3, common.tags, generated.tags, 1, lambda data, *words: tagger.Tagger(*words), "Tagger",
        tagger_products, {"DIM": 16, "HIDDEN": 8},
    ),
    "seq2seq": Task(
        seq2seq, 64, 1e-3, common.parallel, generated.parallel, 2, lambda data, *words: seq2seq.Translator(*words),
        "Seq2Seq", seq2seq_products, {"EMBED": 16, "DIM": 32},
    ),
    "transformer": TRANSLATION,
    "transformer-bucketed": TRANSLATION._replace(bucketed=True),
}  # fmt: skip


# ---- the two sides


def torch_name(name: str) -> str:
    """Of a parameter; the layer of whole trees has its cell inside, PyTorch's model has the cell alone."""
    return name.removeprefix("lstm.") if name.startswith("lstm.cell.") else name


class LazyNet:
    def __init__(self, args, task, data, words):
        self.device = ln.device(args.device)
        ln.set_default_device(self.device)
        ln.seed(1)
        self.model = task.lazynet(data, *words)
        optimizer = ln.optim.Adam(self.model.parameters(), lr=task.rate)
        self.trainer = common.Trainer(args, self.model, optimizer, self.model.loss)
        self.before = self.device.statistics()

    def loss_and_gradients(self, batch):
        """Without dropout."""
        self.model.eval()
        with self.trainer.graph as graph:
            loss = self.model.loss(graph, batch)
            graph.backward(loss)
            value = loss.item()
        gradients = {}
        for name, parameter in self.model.named_parameters():
            gradient = parameter.grad
            if isinstance(gradient, ln.SparseRows):
                gradient = gradient.to_dense(parameter.shape[0])
            gradients[torch_name(name)] = np.zeros(parameter.shape) if gradient is None else np.array(gradient)
        self.model.zero_grad()
        self.model.train()
        return value, gradients

    def step(self, batch, read=False):
        return self.trainer.step(batch, read)

    def synchronize(self):
        self.device.synchronize()

    def reset(self):
        self.trainer.reset()
        self.before = self.device.statistics()

    def counts(self, steps: int, wall: float) -> dict:
        """Of one step, since reset()."""
        shares = self.trainer.shares(wall)
        row = {f"{name}_per_step": round(shares[name] / steps, 1) for name in ("nodes", "kernels", "gathered_mb")}
        for name, after in self.device.statistics()._asdict().items():
            row[f"{name}_per_step"] = round((after - getattr(self.before, name)) / steps, 1)
        row["host_ms"] = {
            name.removesuffix("_share"): round(share * wall / steps * 1e3, 3)
            for name, share in shares.items()
            if name.endswith("_share")
        }
        return row

    def memory(self) -> int:
        """MB on a GPU that it and CuPy hold."""
        if not self.device.name.startswith("cuda"):
            return 0
        import cupy

        return cupy.get_default_memory_pool().total_bytes() >> 20

    def profile(self, batches) -> list:
        """Seconds of every operation in some steps, those that take longest first."""
        graph = self.trainer.graph
        graph.set_profiling(True)
        graph.reset_statistics()
        for batch in batches:
            self.step(batch)
        rows = [{"op": op, **counts} for op, counts in graph.profile().items()]
        graph.set_profiling(False)
        return sorted(rows, key=lambda row: -row["forward_seconds"] - row["backward_seconds"])


class Torch:
    """With ``sparse`` tables of words are updated in the rows of a minibatch only, as LazyNet's are."""

    def __init__(self, args, task, data, words, state, sparse):
        import torch

        from benchmarks import torch_models

        self.torch, self.device, self.sparse = torch, torch.device(args.torch_device), sparse
        torch.set_num_threads(args.threads)
        torch.manual_seed(1)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        more = (data,) if task.torch == "TreeLSTM" else ()
        self.model = getattr(torch_models, task.torch)(*more, *words, sparse=sparse)
        self.model.load_state_dict({torch_name(name): torch.from_numpy(value) for name, value in state.items()})
        self.model.to(self.device)
        tables = [m.weight for m in self.model.modules() if isinstance(m, torch.nn.Embedding) and m.sparse]
        dense = [p for p in self.model.parameters() if all(p is not table for table in tables)]
        how = {"fused": True} if self.device.type == "cuda" else {"foreach": True}
        self.optimizers = [torch.optim.Adam(dense, lr=task.rate, **how)]
        if tables:
            self.optimizers.append(torch.optim.SparseAdam(tables, lr=task.rate))

    def loss_and_gradients(self, batch):
        self.model.eval()
        loss = self.model.loss(batch, self.device)
        loss.backward()
        gradients = {
            name: (p.grad.to_dense() if p.grad.is_sparse else p.grad).cpu().numpy()
            for name, p in self.model.named_parameters()
        }
        self.model.zero_grad()
        self.model.train()
        return loss.item(), gradients

    def step(self, batch, read=False):
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss = self.model.loss(batch, self.device)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.item() if read else 0.0

    def synchronize(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def memory(self) -> int:
        """MB on a GPU that its pool holds."""
        return self.torch.cuda.max_memory_reserved(self.device) >> 20 if self.device.type == "cuda" else 0


def compare(lazynet, torch, batch) -> dict:
    """Losses, and the parameter whose gradients differ most, relative to their norm."""
    (loss, gradients), (torch_loss, torch_gradients) = (side.loss_and_gradients(batch) for side in (lazynet, torch))

    def difference(name):
        norm = np.linalg.norm(torch_gradients[name])
        apart = np.linalg.norm(gradients[name].reshape(torch_gradients[name].shape) - torch_gradients[name])
        return float(apart / norm) if norm > 0 else float(apart)

    apart = {name: difference(name) for name in torch_gradients}
    worst = max(apart, key=lambda name: math.inf if math.isnan(apart[name]) else apart[name])
    relative = abs(loss - torch_loss) / abs(torch_loss)
    return {
        "lazynet_loss": loss,
        "torch_loss": torch_loss,
        "relative": relative,
        "gradient": apart[worst],
        "gradient_of": worst,
        "same": bool(relative <= LOSS_TOLERANCE and apart[worst] <= GRADIENT_TOLERANCE),
    }


def timed(side, batches) -> tuple[float, float]:
    """Seconds of one step after the other, and the last loss: what comes before is not waited for."""
    side.synchronize()
    start = time.perf_counter()
    for batch in batches[:-1]:
        side.step(batch)
    loss = side.step(batches[-1], read=True)
    side.synchronize()
    return time.perf_counter() - start, loss


def faster_torch(make, batches):
    """PyTorch with tables updated in part or as a whole, whichever is faster here; seconds of a step."""
    sides = [make(sparse) for sparse in (True, False)]
    taken = []
    for side in sides:
        timed(side, batches[:WARM_UP])
        taken.append(timed(side, batches[WARM_UP:])[0] / TRIAL)
    best = taken.index(min(taken))
    return sides[best], taken[best]


def summary(rates: list[float]) -> dict:
    return {name: round(take(rates), 2) for name, take in (("median", statistics.median), ("min", min), ("max", max))}


def run(args) -> int:
    """Prints rows, each with more than the one before; all of it, where there is time, in the last."""
    row = {}
    try:
        if args.device.startswith("emulated"):
            from lazynet.device import register
            from tests.emulated import EmulatedRuntime

            register("emulated", EmulatedRuntime)
        if args.child == "roofs":
            roofs.measure(args.device, args.quick, row, show)
        else:
            run_task(args, row)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:1000]
        traceback.print_exc()
    show(row)
    return 1 if "error" in row else 0


def show(row: dict) -> None:
    """Again and again: the process may be stopped."""
    print(json.dumps(row), flush=True)


def run_task(args, row: dict) -> None:
    start = time.monotonic()
    args.variant = "lookahead"
    ln.set_num_threads(args.threads)
    task = TASKS[args.child]
    if args.quick:
        vars(task.module).update(task.quick)
        task = task._replace(batch=4)
    task = task._replace(batch=args.batch or task.batch)
    if args.data:
        data, *words = task.corpus(args)
    else:
        data, *words = task.random(100, *[60] * task.words) if args.quick else task.random(4000)
    row.update(task=args.child, batch=task.batch, data="corpus" if args.data else "random")
    source = common.minibatches(data, task.batch, lambda example: len(example[0]), task.bucketed)
    warm_up = list(islice(source, WARM_UP + TRIAL))
    lazynet = LazyNet(args, task, data, words)
    state = lazynet.model.state_dict()

    def make_torch(sparse):
        return Torch(args, task, data, words, state, sparse)

    torch, slowest = None, 0.0
    try:
        first = make_torch(True)
    except ImportError as error:
        row["torch"] = f"left out: {error}"
    else:
        row["check"] = compare(lazynet, first, warm_up[0])
        show(row)
        torch, slowest = faster_torch(make_torch, warm_up)
        row["torch"] = f"{first.torch.__version__}, tables updated {'in rows' if torch.sparse else 'as a whole'}"
    timed(lazynet, warm_up[:WARM_UP])
    slowest = max(slowest, timed(lazynet, warm_up[WARM_UP:])[0] / TRIAL)
    row["steps_per_round"] = 1 if args.quick else max(1, round(args.seconds / slowest))
    measure(args, task, words, row, source, lazynet, torch, start)
    if args.profile:
        row["profile"] = lazynet.profile(warm_up)[:15]


def measure(args, task, words, row, source, lazynet, torch, start):
    """Rounds of the two in turn, on the same minibatches."""
    steps = row["steps_per_round"]
    lazynet.reset()
    examples, wall, products, done = row["batch"] * steps, 0.0, 0.0, 0
    rates = {"lazynet": [], "torch": []}
    for number in range(2 if args.quick else args.rounds):
        began = time.monotonic()
        batches = list(islice(source, steps))
        taken, row["lazynet_last_loss"] = timed(lazynet, batches)
        wall, done = wall + taken, done + steps
        rates["lazynet"].append(examples / taken)
        if torch:
            taken, row["torch_last_loss"] = timed(torch, batches)
            rates["torch"].append(examples / taken)
            ratios = [a / b for a, b in zip(rates["lazynet"], rates["torch"], strict=True)]
            row["torch_per_s"], row["ratio"] = summary(rates["torch"]), summary(ratios)
            row["torch_memory_mb"] = torch.memory()
        products += sum(task.products(batch, *words) for batch in batches)
        row["rounds"], row["lazynet_per_s"] = number + 1, summary(rates["lazynet"])
        row["products_gflop_per_step"] = round(products / done / 1e9, 4)
        row["step_ms"] = round(wall / done * 1e3, 3)
        row["lazynet_memory_mb"] = lazynet.memory()
        row.update(lazynet.counts(done, wall))
        show(row)
        now = time.monotonic()
        if now - start + (now - began) > args.limit:
            break
