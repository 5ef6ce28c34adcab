"""The command ``motley reproduce``."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from motley.core.errors import InputError
from motley.core.files import write_json, write_text
from motley.reproduce import reproduction as spec
from motley.reproduce.campaign import Plan, WantedRun, matching, run_all, say, wanted_runs
from motley.reproduce.champions import champions_json, champions_markdown
from motley.reproduce.comparison import Table, build
from motley.reproduce.overview import write_overview
from motley.reproduce.pages import HOLDS, markdown, write
from motley.reproduce.planning import waves
from motley.reproduce.reproduction import Reproduction
from motley.reproduce.results import Finished, Results, exported


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Reproductions, or TOML files; none: list what there is.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="A small version on a laptop CPU in minutes; kept apart.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Run nothing: only read what is in the results.")] = False,
    seeds: Annotated[str, typer.Option(help="Seeds instead of the file's, such as 0,1,2.")] = "",
    only: Annotated[
        list[str] | None, typer.Option(help="Run only places ('row, column') that hold this text; may be repeated.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side (on one GPU, or on the cores).")] = 1,
    budget: Annotated[float, typer.Option(min=0, help="Seconds after which no further run starts; 0: none.")] = 0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds more before runs under way are paused.")] = 60,
    executor: Annotated[str, typer.Option(help="Executor instead of the recipes' own.")] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda instead of the recipes' own.")] = "",
    results: Annotated[Path, typer.Option(help="Where finished runs and tables are kept.")] = Path("results"),
    cache: Annotated[Path, typer.Option(help="Where runs under way are kept.")] = Path("runs") / "reproduce",
    export: Annotated[Path | None, typer.Option(help="Also write the runs made now to this file or folder.")] = None,
    take_in: Annotated[Path | None, typer.Option("--import", help="First add runs exported elsewhere.")] = None,
    pages: Annotated[bool, typer.Option("--pages", help="Run nothing: write pages, pictures and index again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: JSON on the last line of stdout.")] = False,
) -> None:
    """Measure a paper's tables and figures again, and print the paper's numbers beside ours."""
    kept = Results(results)
    if take_in is not None:
        _take_in(kept, take_in)
    groups = _groups(names or spec.names())
    wanted = _seeds(seeds)
    running = bool(names) and not (show or pages)
    if running:
        plan = _plan(jobs, budget, grace, executor, device, cache)
        _run_missing(list(chain(*groups.values())), kept, plan, export, quick, wanted, only)
    tables = _tables(groups, kept, quick, wanted)
    if running or pages or take_in is not None:
        _write(tables, kept, quick)
    (_tell if names else _list)(tables, as_json)


def _run_missing(
    made: list[Reproduction],
    kept: Results,
    plan: Plan,
    export: Path | None,
    quick: bool,
    seeds: list[int] | None,
    only: list[str] | None,
) -> None:
    """What is missing; within a budget what decides most claims first."""
    if plan.budget is None or only:
        _run(matching(wanted_runs(made, kept, plan, quick, seeds), only), kept, plan, export)
    else:
        _run_within(made, kept, plan, export, quick, seeds)


def _take_in(kept: Results, source: Path) -> None:
    print(f"{kept.take_in(source)} runs were added from {source}.", file=sys.stderr)


def _groups(names: list[str]) -> dict[str, list[Reproduction]]:
    return {name: [spec.read(member) for member in spec.members(name)] for name in names}


def _tables(
    groups: dict[str, list[Reproduction]], kept: Results, quick: bool, seeds: list[int] | None
) -> dict[str, list[Table]]:
    return {name: [build(one, kept, quick, seeds) for one in members] for name, members in groups.items()}


def _plan(jobs: int, budget: float, grace: float, executor: str, device: str, cache: Path) -> Plan:
    return Plan(jobs, budget or None, grace, executor or None, device or None, cache)


def _write(tables: dict[str, list[Table]], kept: Results, quick: bool) -> None:
    """Pages and pictures of tables, those of groups, and the index."""
    for name, found in tables.items():
        for table in found:
            write(table, kept.place(table.reproduction.name, quick))
        if name in spec.GROUPS:
            write_text(kept.place(name, quick) / "README.md", champions_markdown(found))
            write_json(kept.place(name, quick) / "table.json", champions_json(name, found))
    write_overview(kept.folder)


def _tell(tables: dict[str, list[Table]], as_json: bool) -> None:
    if as_json:
        content = [_as_json(name, found) for name, found in tables.items()]
        print(json.dumps(content[0] if len(content) == 1 else content))
        return
    for name, found in tables.items():
        for table in found:
            _print(table)
        if name in spec.GROUPS:
            _show(champions_markdown(found))


def _as_json(name: str, found: list[Table]) -> dict[str, Any]:
    return champions_json(name, found) if name in spec.GROUPS else found[0].as_json()


def _seeds(text: str) -> list[int] | None:
    try:
        return [int(part) for part in text.split(",")] if text else None
    except ValueError:
        raise InputError(f"--seeds {text} is not a list of whole numbers such as 0,1,2.") from None


def _run_within(
    made: list[spec.Reproduction], kept: Results, plan: Plan, export: Path | None, quick: bool, seeds: list[int] | None
) -> None:
    """Runs what decides most claims first, until the budget is spent."""
    assert plan.budget is not None
    deadline = time.monotonic() + plan.budget
    done: list[Finished] = []
    for batch, told in waves(made, kept, plan, quick, seeds):
        print(told, file=sys.stderr, flush=True)
        left = deadline - time.monotonic()
        if left <= 0:
            break
        _carry_out(batch, kept, replace(plan, budget=left), export, done)
    missing = len(wanted_runs(made, kept, plan, quick, seeds))
    if missing:
        print(f"{missing} runs are still missing; the same command goes on.", file=sys.stderr)


def _carry_out(todo: list[WantedRun], kept: Results, plan: Plan, export: Path | None, done: list[Finished]) -> None:
    print(f"{len(todo)} runs to make.", file=sys.stderr, flush=True)
    for finished in run_all(todo, plan, say):
        kept.add(finished)
        done.append(finished)
        if export is not None:
            exported(export, done)


def _run(todo: list[WantedRun], kept: Results, plan: Plan, export: Path | None) -> None:
    done: list[Finished] = []
    _carry_out(todo, kept, plan, export, done)
    if len(done) < len(todo):
        print(f"{len(todo) - len(done)} runs are still missing; the same command goes on.", file=sys.stderr)


def _list(tables: dict[str, list[Table]], as_json: bool) -> None:
    rows = [_counted(table) for found in tables.values() for table in found]
    if as_json:
        print(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid("name", "what", "status", "runs", box=None)
    for row in rows:
        grid.add_row(row["name"], row["title"], row["status"], f"{row['runs'] - row['missing_runs']}/{row['runs']}")
    Console().print(grid)
    for line in _by_paper(rows):
        print(line)


def _by_paper(rows: list[dict[str, Any]]) -> list[str]:
    """What became of each paper's claims, and the runs behind them."""
    lines = ["", "claims by paper:"]
    for paper in dict.fromkeys(_paper(row) for row in rows):
        own = [row for row in rows if _paper(row) == paper]
        hold, fail, still = (sum(row[key] for row in own) for key in ("claims_hold", "claims_fail", "claims_open"))
        made = sum(row["runs"] - row["missing_runs"] for row in own)
        lines.append(f"  {paper}: {hold} hold, {fail} do not, {still} cannot be told; {made} runs")
    return lines


def _paper(row: dict[str, Any]) -> str:
    """The paper's system, with which names begin."""
    return "ama-fes" if row["name"].startswith("ama-fes") else str(row["name"]).split("-")[0]


def _counted(table: Table) -> dict[str, Any]:
    made = table.reproduction
    return {
        "name": made.name,
        "paper": made.paper,
        "status": table.status,
        "title": made.title,
        "runs": len(made.cells()) * len(made.draws()),
        "missing_runs": table.missing,
        **table.counts,
    }


def _show(page: str) -> None:
    if not sys.stdout.isatty():
        print(page)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(page))


def _print(table: Table) -> None:
    _show(markdown(table))
    if not sys.stdout.isatty():
        return
    from rich.console import Console

    for claim in table.claims:
        Console().print(f"{HOLDS[claim.holds]:>12}  {claim.text}")
