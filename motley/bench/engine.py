"""Rounds of every executor beside a bare PyTorch loop and beside the floor of the machine, in one run.

All train the same cohort on the same device from the same weights and take the weighted mean. They alternate, so that a
machine that changes its speed does so for all. The cohort stays the same from round to round: what is made ready once
(traces, captured graphs, processes) is made in the rounds that do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from motley.bench.cases import CASES, case_named, make_jobs, make_training
from motley.bench.floor import ceilings, median_ms, work_of
from motley.bench.workload import Plan, Workload, descend, plainly, precision
from motley.client.trainer import Outcome
from motley.core.keys import Key, fold_in, permutation
from motley.core.network import Network
from motley.core.types import Round
from motley.protocol.federation import Arrival, Weights
from motley.run.executors.base import EXECUTORS, Executor, Job, n_cores
from motley.run.executors.place import pick
from motley.run.flights import stack
from motley.server.aggregate import layerwise_mean

Row = dict[str, Any]
WARMUP = 2
BARE = "bare loop"


class Contender(Protocol):
    """Somebody who can train a round."""

    name: str

    def round(self) -> Tensor: ...


def merged(net: Network, start: Tensor, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> Tensor:
    """The weighted mean of a round's outcomes, as the server takes it."""
    sent, number = Weights(start), jobs[0].facts.round
    arrivals = [
        Arrival(
            job.client, number, sent, outcome.payload, outcome.trained, {}, {}, job.facts.n, outcome.loss, job.steps,
            job.facts.epochs, job.facts.lr, duration=0.0,
        )
        for job, outcome in zip(jobs, outcomes, strict=True)
    ]  # fmt: skip
    updates = stack(Round(number, Key.root(0), len(jobs), 0.0), arrivals)
    return layerwise_mean(net, start, updates, updates.n)


class Ours:
    """One of Motley's executors."""

    def __init__(self, name: str, executor: Executor, workload: Workload) -> None:
        self.name, self.executor, self.workload = name, executor, workload
        self.start = workload.net.initial().to(getattr(executor, "device", "cpu"))

    def round(self) -> Tensor:
        case = self.workload.case
        jobs = make_jobs(case, self.workload.data, self.start, self.workload.key, 1)
        return merged(self.workload.net, self.start, jobs, self.executor.run(jobs))


class Bare:
    """The loop anyone would write: a module, an optimizer, minibatches, a weighted mean; orders drawn beforehand."""

    def __init__(self, workload: Workload, jobs: Sequence[Job], threads: int) -> None:
        self.threads = threads
        self.name = f"{BARE}, {threads} thread{'s' if threads > 1 else ''}"
        self.workload = workload
        self.module = workload.module()
        self.start = [parameter.detach().clone() for parameter in self.module.parameters()]
        self.orders = [(job, self._orders(job)) for job in jobs]

    def _orders(self, job: Job) -> list[Tensor]:
        n, left, made = int(job.facts.n), job.steps * self.workload.case.batch_size, []
        epoch = 0
        while left > 0:
            made.append(permutation(fold_in(job.key.tensor(), epoch), n)[:left].to(self.workload.device))
            left -= -(-n // self.workload.case.batch_size) * self.workload.case.batch_size
            epoch += 1
        return made

    def round(self) -> Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            return self._round()
        finally:
            torch.set_num_threads(before)

    def _round(self) -> Tensor:
        parameters: list[Tensor] = list(self.module.parameters())
        mean = [torch.zeros_like(value) for value in self.start]
        total = sum(job.facts.n for job, _ in self.orders)
        with plainly(self.workload.plan):
            for job, orders in self.orders:
                with torch.no_grad():
                    torch._foreach_copy_(parameters, self.start)
                x, y = self.workload.clients[job.client]
                descend(self.module, ((x[order], y[order]) for order in orders), self.workload.case)
                trained = [parameter.detach() for parameter in parameters]
                torch._foreach_add_(mean, trained, alpha=job.facts.n / total)
        named = dict(zip((name for name, _ in self.module.named_parameters()), mean, strict=True))
        return self.workload.net.layout.flatten(named)


@contextmanager
def _contenders(workload: Workload, names: Sequence[str]) -> Iterator[list[Any]]:
    case = workload.case
    training = make_training(case, workload.data, workload.key.fold("init"), workload.plan.precision)
    jobs = make_jobs(case, workload.data, workload.net.initial(), workload.key, 1)
    with ExitStack() as stack:
        counts = {1, torch.get_num_threads()} if workload.device.type == "cpu" else {torch.get_num_threads()}
        made: list[Any] = [Bare(workload, jobs, threads) for threads in sorted(counts)]
        for name in names:
            device = {"device": workload.device.type} if name == "batched" else {}
            executor = EXECUTORS.make(name, training, workload.data, n_cores(), **device)
            stack.callback(executor.close)
            made.append(Ours(name, executor, workload))
        yield made


def measure(case: str, device: str, exactness: str, rounds: int, executors: Sequence[str]) -> list[Row]:
    """One row per contender for one case."""
    workload = Workload(Plan(case_named(case), device, exactness))
    place = torch.device(device)
    with precision(exactness), _contenders(workload, executors) as contenders:
        best = ceilings(place)
        seconds: dict[str, list[float]] = {one.name: [] for one in contenders}
        for turn in range(WARMUP + rounds):
            for one in contenders:
                workload.wait()
                begun = time.perf_counter()
                one.round()
                workload.wait()
                if turn >= WARMUP:
                    seconds[one.name].append(time.perf_counter() - begun)
        jobs = make_jobs(workload.case, workload.data, workload.net.initial(), workload.key, 1)
        work = work_of(workload.net, workload.data, jobs, workload.case.batch_size)
        waste = {one.name: one.executor.waste.share for one in contenders if _counts(one)}
    floor = 1000.0 * work.seconds(best)
    seconds = _quickest_bare_first(seconds)
    bare = median_ms(seconds[BARE])
    steps = sum(job.steps for job in jobs)
    return [
        {
            "case": case,
            "executor": name,
            "device": device,
            "precision": exactness if device.startswith("cuda") else "float32",
            "ms_per_round": _short(ms := median_ms(found)),
            "client_steps_per_s": _short(1000.0 * steps / ms),
            "ratio_to_bare_loop": _short(ms / bare),
            "ratio_to_floor": _short(ms / floor),
            "waste": _short(waste[name]) if name in waste else None,
            "floor": work.bound(best),
            "tflops": _short(best.flops / 1e12),
            "gb_per_s": _short(best.bandwidth / 1e9),
        }
        for name, found in seconds.items()
    ]


def _quickest_bare_first(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    """On a CPU the bare loop ran with one thread and with all: the quicker of the two is what others are held to."""
    bare = [name for name in seconds if name.startswith(BARE)]
    best = min(bare, key=lambda name: median_ms(seconds[name]))
    return {BARE: seconds[best], **{name: found for name, found in seconds.items() if name != best}}


def _counts(one: Any) -> bool:
    return isinstance(one, Ours) and hasattr(one.executor, "waste")


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def engine(
    cases: Sequence[str] = (),
    device: str = "auto",
    exactness: str = "float32",
    rounds: int = 5,
    executors: Sequence[str] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Rows of all cases; on a GPU the bare loop and `batched`, on a CPU `loop` and `pool` as well."""
    device = pick(device)
    names = tuple(executors) or (("batched",) if device.startswith("cuda") else ("loop", "pool", "batched"))
    for name in names:
        EXECUTORS[name]
    rows: list[Row] = []
    for case in [case_named(name).name for name in cases] or list(CASES):
        tell(case)
        rows += measure(case, device, exactness, rounds, names)
    return rows


def plot(rows: Sequence[Row], path: Path) -> Path:
    """How many times as fast as the bare loop, a group of bars per case; the floor as a line."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    from motley.report.plots import COLOURS

    cases = list(dict.fromkeys(row["case"] for row in rows))
    names = list(dict.fromkeys(row["executor"] for row in rows if not row["executor"].startswith(BARE)))
    height = 0.8 / max(1, len(names))
    with mpl.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(figsize=(9, 1.4 + 0.32 * len(cases) * (len(names) + 1)), layout="constrained")
        for i, name in enumerate(names):
            own = {row["case"]: row for row in rows if row["executor"] == name}
            places = [cases.index(case) + (i - (len(names) - 1) / 2) * height for case in own]
            speeds = [1.0 / row["ratio_to_bare_loop"] for row in own.values()]
            bars = axes.barh(places, speeds, height * 0.92, color=COLOURS[i], label=name)
            axes.bar_label(bars, [f" {speed:.3g}x" for speed in speeds], fontsize=9, zorder=5)
        floors = [1.0 / row["ratio_to_bare_loop"] * row["ratio_to_floor"] for row in rows if row["executor"] == BARE]
        axes.vlines(
            floors, [i - 0.45 for i in range(len(cases))], [i + 0.45 for i in range(len(cases))], color="0.25",
            linestyle="--", label="floor of the machine",
        )  # fmt: skip
        axes.axvline(1.0, color="0.6", linewidth=1)
        axes.set_xscale("log")
        axes.set_yticks(range(len(cases)), cases)
        axes.invert_yaxis()
        axes.set_xlabel(f"times as fast as a bare PyTorch loop ({rows[0]['device']}, {rows[0]['precision']})")
        figure.legend(loc="outside upper center", ncols=4, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
        plt.close(figure)
    return path


__all__ = ["BARE", "Bare", "Ours", "engine", "measure", "merged", "plot"]
