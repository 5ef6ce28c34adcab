"""``motley bench``: measurements of Motley itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from motley.commands.kernel_command import kernels
from motley.commands.output import AsJson, OutputMode, shown

app = typer.Typer(help="Measure Motley itself.", no_args_is_help=True)
app.command()(kernels)

PEER_CASES = "cifar10_pfl,fedsae_logistic,rebafl_cnn"


@app.callback()
def _group() -> None:
    """Keeps `overhead` a command of its own however many there are."""


def show_rows(rows: list[dict[str, Any]], title: str) -> None:
    """Measured rows as a table for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for key in rows[0]:
        table.add_column(key.replace("_", " "), justify="left" if isinstance(rows[0][key], str) else "right")
    for row in rows:
        table.add_row(*("-" if value is None else str(value) for value in row.values()))
    Console(highlight=False).print(table)


def without_constants(
    rows: list[dict[str, Any]], title: str, keys: tuple[str, ...]
) -> tuple[list[dict[str, Any]], str]:
    """Columns that say the same in every row, as a part of the title."""
    constant = [key for key in keys if key in rows[0] and len({row[key] for row in rows}) == 1]
    title = ", ".join([*(str(rows[0][key]) for key in constant), title])
    return [{key: value for key, value in row.items() if key not in constant} for row in rows], title


def _end(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Rows for machines, each with where and with what it was measured."""
    if as_json:
        from motley.runtime.records import environment

        here = environment()
        common = {"commit": here["commit"], "torch": here["packages"].get("torch")}
        rows = [{**row, "machine": here["processor" if row["device"] == "cpu" else "gpu"], **common} for row in rows]
    OutputMode(as_json).end(rows)


@app.command()
def overhead(
    repeats: Annotated[int, typer.Option(min=1, help="Rounds measured; the median counts.")] = 5,
    as_json: AsJson = False,
) -> None:
    """One round of the loop executor beside a bare PyTorch loop that does the same steps."""
    from motley.bench.overhead import overhead as measured

    rows = measured(repeats)
    if not as_json:
        show_rows(rows, "One round of 'loop' against a bare PyTorch loop (ratio 1.00: no overhead)")
    _end(rows, as_json)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@app.command()
def peers(
    cases: Annotated[str, typer.Option(help="Cases, joined by commas.")] = PEER_CASES,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count; their mean is given.")] = 3,
    warmup: Annotated[int, typer.Option(min=1, help="Rounds before them.")] = 1,
    rehearsal: Annotated[
        int | None, typer.Option(min=0, help="Rounds the batched executor trains before those; 20 on a GPU, else 3.")
    ] = None,
    precision: Annotated[str, typer.Option(help="tf32 or float32, for everyone.")] = "tf32",
    processes: Annotated[int, typer.Option(min=1, help="Processes that share the device, for peers that can.")] = 4,
    executors: Annotated[str, typer.Option(help="Motley's executors; all that suit the machine unless told.")] = "",
    against: Annotated[str, typer.Option(help="Peers, joined by commas.")] = "pfl,flower",
    limit: Annotated[float, typer.Option(min=1, help="Seconds that a peer may take for all cases.")] = 300,
    check: Annotated[
        bool, typer.Option("--check", help="Compare results, not times: do all do the same work?")
    ] = False,
    png: Annotated[Path | None, typer.Option(help="Also draw the times into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """The same workload in Motley, pfl-research, Flower (where installed) and a bare PyTorch loop."""
    from motley.bench import peers as bench

    plans = bench.make_plans(_names(cases) or _names(PEER_CASES), precision, rounds, warmup, rehearsal)
    who = bench.contenders(_names(executors), _names(against), processes, limit)

    def tell(text: str) -> None:
        typer.echo(text, err=True)

    rows = bench.check(plans, who, tell) if check else bench.compare(plans, who, tell)
    if png is not None and not check:
        tell(f"Drawn: {shown(bench.draw(rows, png))}")
    if not as_json:
        title = "Difference: share of a weight's largest change" if check else "Ratios: times as long as"
        show_rows(*without_constants(rows, title, ("device", "precision")))
    _end(rows, as_json)


Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")]
Png = Annotated[Path | None, typer.Option(help="Also draw the result into this file.")]


def _progress(text: str) -> None:
    typer.echo(text, err=True)


@app.command()
def engine(
    cases: Annotated[str, typer.Option(help="Cases, joined by commas; all unless told.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count; their median is given.")] = 5,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="float32 or tf32; it concerns GPUs.")] = "float32",
    executors: Annotated[str, typer.Option(help="Motley's executors; all that suit the machine unless told.")] = "",
    png: Png = None,
    as_json: AsJson = False,
) -> None:
    """Every executor beside a bare PyTorch loop and beside the floor of the machine."""
    from motley.bench import executors as bench

    rows = bench.engine(_names(cases), device, precision, rounds, _names(executors), _progress)
    if png is not None:
        _progress(f"Drawn: {shown(bench.plot(rows, png))}")
    if not as_json:
        hidden = ("tflops", "gb_per_s")
        speeds = f"{rows[0]['tflops']:g} TFLOP/s, {rows[0]['gb_per_s']:g} GB/s; ratios: times as long as"
        brief = [{key: value for key, value in row.items() if key not in hidden} for row in rows]
        show_rows(*without_constants(brief, speeds, ("device", "precision")))
    _end(rows, as_json)


@app.command()
def scale(
    cases: Annotated[str, typer.Option(help="logistic, cnn, or both.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count; their median is given.")] = 3,
    device: Device = "auto",
    cohort: Annotated[int, typer.Option(min=10, help="Clients per round, at most.")] = 10_000,
    population: Annotated[int, typer.Option(min=1000, help="Clients in the population, at most.")] = 1_000_000,
    png: Png = None,
    as_json: AsJson = False,
) -> None:
    """Time and memory as clients per round and the population grow."""
    from motley.bench import scale as bench

    rows = bench.scale(_names(cases), device, rounds, cohort, population, _progress)
    if png is not None:
        _progress(f"Drawn: {shown(bench.plot(rows, png))}")
    if not as_json:
        show_rows(*without_constants(rows, "growing federations", ("device", "executor")))
        for task in bench.TASKS:
            flat = bench.flatness(rows, task.name)
            if flat is not None:
                typer.echo(f"{task.name}: slowest over quickest client-step from 50 to 1000 clients: {flat:g}")
    _end(rows, as_json)


@app.command()
def convolutions(
    cases: Annotated[str, typer.Option(help="Networks, joined by commas; all unless told.")] = "",
    precision: Annotated[str, typer.Option(help="float32 or tf32.")] = "tf32",
    as_json: AsJson = False,
) -> None:
    """Gradients of many clients' CNNs by Motley's kernels and by torch, in time and in digits; needs a GPU."""
    from motley.bench import convolutions as bench

    rows = bench.convolutions(_names(cases), precision, _progress)
    if not as_json:
        show_rows(*without_constants(rows, "errors: against float64", ("device", "precision")))
    _end(rows, as_json)


@app.command()
def agreement(
    names: Annotated[str, typer.Option(help="Parts and methods, joined by commas; all unless told.")] = "",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Whether the batched executor gives what the loop gives, for every part and every method."""
    from motley.bench import agreement as bench
    from motley.engine.device import pick

    def tell(row: dict[str, Any]) -> None:
        word = "agrees" if row["agrees"] else "DIFFERS"
        typer.echo(f"{row['name']:<32} {row['model']:<5} {row['relative']:<10.2g} {word}", err=True)

    place = pick(device)
    rows = bench.agreement(place, _names(names), tell=tell)
    wrong = [row for row in rows if not row["agrees"]]
    if not as_json:
        worst = max(row["relative"] for row in rows)
        typer.echo(
            f"{len(rows) - len(wrong)} of {len(rows)} agree on {place}: largest difference {worst:.2g} of the largest "
            f"change of a weight, allowed are {rows[0]['tolerance']:g}."
        )
    _end(rows, as_json)
    if wrong:
        raise typer.Exit(1)
