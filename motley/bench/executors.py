"""Rounds of every executor beside a bare PyTorch loop and beside the floor of the machine, in one run.

All train the same cohort on the same device from the same weights and take the weighted mean. They alternate, so that a
machine that changes its speed does so for all. The cohort stays the same from round to round: what is made ready once
(traces, captured graphs, processes) is made in the rounds that do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from motley.bench.cases import CASES, case_named, make_site, make_tasks
from motley.bench.floor import ceilings, median_ms, work_of
from motley.bench.workloads import Plan, Workload, descend, plainly, precision
from motley.core.keys import Key, fold_in, permutation
from motley.core.network import Network
from motley.core.tasks import Assignment, Failed, Report, Update, Weights
from motley.core.types import Round
from motley.engine.device import pick
from motley.engine.executor import Executor, make_executor, n_cores, read_executor
from motley.server.aggregate import layerwise_mean
from motley.server.tally import stacked

Row = dict[str, Any]
WARMUP = 2
BARE = "bare loop"


class Contender(Protocol):
    """Somebody who can train a round."""

    name: str

    def round(self) -> Tensor: ...


def merged(net: Network, tasks: Sequence[Assignment], reports: Mapping[str, Report]) -> Tensor:
    """The weighted mean of a round's reports, as the server takes it."""
    updates = []
    for a in tasks:
        r = reports[a.id]
        told = (r.n, r.loss, r.steps, r.epochs, a.lr, 0.0)
        updates.append(Update(a.id, a.client, a.round, a.start, r.payload, r.trained, {}, *told))
    found = stacked(Round(tasks[0].round, Key.root(0), len(tasks), 0.0), updates)
    return layerwise_mean(net, tasks[0].start.value, found, found.n)


class Ours:
    """One of Motley's executors."""

    def __init__(self, name: str, executor: Executor, workload: Workload) -> None:
        self.name, self.executor, self.workload = name, executor, workload
        self.start = workload.net.initial().to(executor.device)

    def round(self) -> Tensor:
        tasks = make_tasks(self.workload.case, Weights(self.start), self.workload.key, 1)
        reports = {}
        for done in self.executor.submit(tasks, lambda client: None):
            if isinstance(done, Failed):
                raise done.error
            reports[done.report.id] = done.report
        return merged(self.workload.net, tasks, reports)


class Bare:
    """The loop anyone would write: a module, an optimizer, minibatches, a weighted mean; orders drawn beforehand."""

    def __init__(self, workload: Workload, tasks: Sequence[Assignment], threads: int) -> None:
        self.threads = threads
        self.name = f"{BARE}, {threads} thread{'s' if threads > 1 else ''}"
        self.workload = workload
        self.module = workload.module()
        self.start = [parameter.detach().clone() for parameter in self.module.parameters()]
        self.orders = [(a.client, self._orders(a)) for a in tasks]

    def _orders(self, a: Assignment) -> list[Tensor]:
        n, left = int(self.workload.data.sizes[a.client]), self.workload.steps(a.client) * self.workload.case.batch_size
        made: list[Tensor] = []
        epoch = 0
        while left > 0:
            made.append(permutation(fold_in(a.key.tensor(), epoch), n)[:left].to(self.workload.device))
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
        sizes = self.workload.data.sizes
        total = float(sum(sizes[client] for client, _ in self.orders))
        with plainly(self.workload.plan):
            for client, orders in self.orders:
                with torch.no_grad():
                    torch._foreach_copy_(parameters, self.start)
                x, y = self.workload.clients[client]
                descend(self.module, ((x[order], y[order]) for order in orders), self.workload.case)
                trained = [parameter.detach() for parameter in parameters]
                torch._foreach_add_(mean, trained, alpha=float(sizes[client]) / total)
        named = dict(zip((name for name, _ in self.module.named_parameters()), mean, strict=True))
        return self.workload.net.layout.flatten(named)


@contextmanager
def _contenders(workload: Workload, names: Sequence[str]) -> Iterator[list[Any]]:
    case = workload.case
    site = make_site(case, workload.data, workload.key.fold("init"), workload.plan.precision)
    tasks = make_tasks(case, Weights(workload.net.initial()), workload.key, 1)
    with ExitStack() as stack:
        counts = {1, torch.get_num_threads()} if workload.device.type == "cpu" else {torch.get_num_threads()}
        made: list[Any] = [Bare(workload, tasks, threads) for threads in sorted(counts)]
        for name in names:
            executor = make_executor(name, site, n_cores(), workload.device.type)
            stack.callback(executor.close)
            made.append(Ours(name, executor, workload))
        yield made


def _timed(contenders: Sequence[Any], workload: Workload, rounds: int) -> dict[str, list[float]]:
    """Seconds of rounds, taken in turn, after some to warm up."""
    seconds: dict[str, list[float]] = {one.name: [] for one in contenders}
    for turn in range(WARMUP + rounds):
        for one in contenders:
            workload.wait()
            begun = time.perf_counter()
            one.round()
            workload.wait()
            if turn >= WARMUP:
                seconds[one.name].append(time.perf_counter() - begun)
    return seconds


def measure(case: str, device: str, exactness: str, rounds: int, executors: Sequence[str]) -> list[Row]:
    """One row per contender for one case."""
    workload = Workload(Plan(case_named(case), device, exactness))
    place = torch.device(device)
    with precision(exactness), _contenders(workload, executors) as contenders:
        best = ceilings(place)
        seconds = _timed(contenders, workload, rounds)
        tasks = make_tasks(workload.case, Weights(workload.net.initial()), workload.key, 1)
        work = work_of(make_site(workload.case, workload.data, workload.key.fold("init")), tasks)
        waste = {one.name: one.executor.waste.share for one in contenders if _counts(one)}
    floor = 1000.0 * work.seconds(best)
    seconds = _quickest_bare_first(seconds)
    bare = median_ms(seconds[BARE])
    steps = sum(workload.steps(a.client) for a in tasks)
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
        read_executor(name)
    rows: list[Row] = []
    for case in [case_named(name).name for name in cases] or list(CASES):
        tell(case)
        rows += measure(case, device, exactness, rounds, names)
    return rows


def plot(rows: Sequence[Row], path: Path) -> Path:
    """How many times as fast as the bare loop, a group of bars per case; the floor as a line."""
    from motley.report.pictures import drawing, save

    cases = list(dict.fromkeys(row["case"] for row in rows))
    names = list(dict.fromkeys(row["executor"] for row in rows if not row["executor"].startswith(BARE)))
    with drawing() as plt:
        figure, axes = plt.subplots(figsize=(9, 1.4 + 0.32 * len(cases) * (len(names) + 1)), layout="constrained")
        _bars(axes, rows, cases, names)
        _floors(axes, rows, len(cases))
        axes.axvline(1.0, color="0.6", linewidth=1)
        axes.set_xscale("log")
        axes.set_yticks(range(len(cases)), cases)
        axes.invert_yaxis()
        axes.set_xlabel(f"times as fast as a bare PyTorch loop ({rows[0]['device']}, {rows[0]['precision']})")
        figure.legend(loc="outside upper center", ncols=4, frameon=False)
        return save(figure, path)


def _bars(axes: Any, rows: Sequence[Row], cases: list[str], names: list[str]) -> None:
    from motley.report.plots import COLOURS

    height = 0.8 / max(1, len(names))
    for i, name in enumerate(names):
        own = {row["case"]: row for row in rows if row["executor"] == name}
        places = [cases.index(case) + (i - (len(names) - 1) / 2) * height for case in own]
        speeds = [1.0 / row["ratio_to_bare_loop"] for row in own.values()]
        bars = axes.barh(places, speeds, height * 0.92, color=COLOURS[i], label=name)
        axes.bar_label(bars, [f" {speed:.3g}x" for speed in speeds], fontsize=9, zorder=5)


def _floors(axes: Any, rows: Sequence[Row], n_cases: int) -> None:
    floors = [1.0 / row["ratio_to_bare_loop"] * row["ratio_to_floor"] for row in rows if row["executor"] == BARE]
    axes.vlines(
        floors, [i - 0.45 for i in range(n_cases)], [i + 0.45 for i in range(n_cases)], color="0.25",
        linestyle="--", label="floor of the machine",
    )  # fmt: skip


__all__ = ["BARE", "Bare", "Ours", "engine", "measure", "merged", "plot"]
