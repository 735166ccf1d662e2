"""What the translation examples share: corpus, training, and BLEU of beam search. The models are in their own files."""

import argparse
import random
import time
from pathlib import Path

from tqdm import tqdm

try:
    import sacrebleu
except ImportError:
    raise SystemExit("sacrebleu is not installed: pip install sacrebleu") from None

import lazynet as ln
from lazynet.data import Vocabulary, minibatches, read_parallel, token_batches

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"


def options(description: str, **defaults: object) -> argparse.ArgumentParser:
    """The arguments of both programs."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--data", help="folder with train.en, train.de, val.en, val.de, test_2016.en, test_2016.de")
    parser.add_argument("--quick", action="store_true", help="a few seconds on generated sentences instead")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1500, help="target words of a minibatch")
    parser.add_argument("--beam", type=int, default=5, help="hypotheses a sentence; 1 is greedy")
    parser.add_argument("--length-penalty", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=ln.num_threads())
    parser.add_argument("--save", help="file of the best model; training goes on from it where it exists")
    parser.set_defaults(**defaults)
    return parser


def generated_pairs(count: int, seed: int) -> list[tuple[list[str], list[str]]]:
    """A toy language whose translation says everything backwards in capitals."""
    rng = random.Random(seed)
    sentences = [[rng.choice("abcdef") for _ in range(rng.randint(1, 6))] for _ in range(count)]
    return [(words, [word.upper() for word in reversed(words)]) for words in sentences]


class Corpus:
    """Pairs of sentences as ids; targets stand between ``<s>`` and ``</s>``."""

    def __init__(self, args: argparse.Namespace) -> None:
        if args.quick:
            parts = {name: generated_pairs(n, seed) for seed, (name, n) in enumerate([("train", 500), ("val", 40)])}
            parts["test_2016"] = generated_pairs(40, 2)
        elif args.data:
            parts = {name: self.read(Path(args.data), name) for name in ("train", "val", "test_2016")}
        else:
            raise SystemExit("give --data FOLDER (Multi30k, task 1, tokenised) or --quick")
        self.parts, count = parts, 1 if args.quick else 2
        self.source = Vocabulary.build((a for a, _ in parts["train"]), count, specials=(UNKNOWN,))
        self.target = Vocabulary.build((b for _, b in parts["train"]), count, specials=(UNKNOWN, BEGIN, END))
        self.begin, self.end = self.target[BEGIN], self.target[END]

    @staticmethod
    def read(folder: Path, name: str) -> list[tuple[list[str], list[str]]]:
        """Words of both sides."""
        pairs = read_parallel(folder / f"{name}.en", folder / f"{name}.de", drop_empty=name == "train")
        return [(source.split(), target.split()) for source, target in pairs]

    def ids(self, name: str) -> list[tuple[list[int], list[int]]]:
        """A part as ids."""
        return [(self.source.encode(a), [self.begin, *self.target.encode(b), self.end]) for a, b in self.parts[name]]


def evaluate_loss(model: ln.Module, pairs: list) -> float:
    """Perplexity of the target words."""
    graph, perplexity = ln.Graph(train=False), ln.metrics.Perplexity()
    for batch in minibatches(pairs, 64, shuffle=False):
        with graph:
            loss = ln.sum([model.loss(graph, source, target) for source, target in batch])
            perplexity.update(loss.item(), sum(len(target) - 1 for _, target in batch))
    return perplexity.value


def translate(model: ln.Module, corpus: Corpus, sources: list, args: argparse.Namespace) -> list[str]:
    """The best translation of every sentence; many sentences and all their hypotheses run together."""
    found = []
    for start in tqdm(range(0, len(sources), 64), "translating", leave=False, disable=args.quick):
        several = ln.decode.beam_search(
            model, sources[start : start + 64], beam=args.beam, begin=corpus.begin, end=corpus.end,
            max_length=lambda source: 10 + 2 * len(source), length_penalty=args.length_penalty,
        )  # fmt: skip
        found += [" ".join(corpus.target.decode(hypotheses[0].tokens)) for hypotheses in several]
    return found


def bleu(translations: list[str], references: list[str]) -> float:
    """Corpus BLEU (Papineni et al. 2002) of words as the corpus separates them, by sacrebleu."""
    return sacrebleu.corpus_bleu(translations, [references], tokenize="none", force=True).score


def run(args: argparse.Namespace, make_model, make_schedule) -> dict[str, float]:
    """Trains, keeps the model with the best perplexity on val, and translates the test set with it.

    ``make_model(source words, target words)``; its ``loss(graph, source, target)`` is a sum over the target's words.
    """
    ln.set_num_threads(args.threads)
    ln.seed(args.seed)
    corpus = Corpus(args)
    train, val = corpus.ids("train"), corpus.ids("val")
    model = make_model(len(corpus.source), len(corpus.target))
    optimizer = ln.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
    schedule, stopping = make_schedule(optimizer), ln.optim.EarlyStopping(patience=3)
    graph, first = ln.Graph(seed=args.seed), 0
    if args.save and Path(args.save).exists():
        first = ln.load(args.save, model=model, optimizer=optimizer, schedule=schedule, graph=graph).step
    began = time.perf_counter()
    for epoch in range(first, args.epochs):
        total = words = 0
        batches = list(token_batches(train, args.tokens, length=lambda pair: len(pair[1]), seed=args.seed + epoch))
        with tqdm(batches, f"epoch {epoch + 1}", leave=False, disable=args.quick) as progress:
            for batch in progress:
                count = sum(len(target) - 1 for _, target in batch)
                with graph:
                    loss = ln.sum([model.loss(graph, source, target) for source, target in batch]) * (1 / count)
                    graph.backward(loss)
                    total, words = total + loss.item() * count, words + count
                optimizer.step(max_norm=1.0)
                schedule.step()
                progress.set_postfix(loss=f"{total / words:.3f}", refresh=False)
        perplexity = evaluate_loss(model, val)
        best = stopping.update(perplexity, model)
        print(
            f"epoch {epoch + 1}: training loss {total / words:.3f} a word, perplexity on val {perplexity:.2f}, "
            f"{(time.perf_counter() - began) / 60:.1f} minutes", flush=True,
        )  # fmt: skip
        if best and args.save:
            ln.save(args.save, model=model, optimizer=optimizer, schedule=schedule, graph=graph, step=epoch + 1)
        if stopping.stop:
            break
    if stopping.best is not None:
        stopping.restore(model)
    sources = [source for source, _ in corpus.ids("test_2016")]
    references = [" ".join(target) for _, target in corpus.parts["test_2016"]]
    began = time.perf_counter()
    translations = translate(model, corpus, sources, args)
    seconds = time.perf_counter() - began
    result = {"perplexity": evaluate_loss(model, val), "bleu": bleu(translations, references)}
    print(
        f"test 2016: BLEU {result['bleu']:.2f} with beam {args.beam}, {len(sources) / seconds:.0f} sentences/s; "
        f"for example:\n  {' '.join(corpus.parts['test_2016'][0][0])}\n  {translations[0]}"
    )
    return result
