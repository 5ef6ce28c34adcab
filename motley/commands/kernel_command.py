"""``motley bench kernels``: the kernel study."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motley.commands.output import AsJson, Interrupted, OutputMode, shown
from motley.core.errors import InputError

if TYPE_CHECKING:
    from motley.bench.kernel_study.study_record import StudyRecord
    from motley.bench.kernel_study.study_run import StudyPlan


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in _names(text))
    except ValueError:
        found = (0,)
    if any(number < 1 for number in found):
        raise InputError(f"--threads {text} is no list of numbers of threads such as 1,2.")
    return found


def _compiler() -> str | None:
    if shutil.which("g++") is None:
        return None
    told = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=False).stdout
    return told.splitlines()[0] if told else None


def kernels(
    only: Annotated[str, typer.Option(help="Kernels, joined by commas; all unless told.")] = "",
    sizes: Annotated[str, typer.Option(help="Sizes, joined by commas: small, medium.")] = "small,medium",
    threads: Annotated[str, typer.Option(help="Numbers of threads; one and as many as cores unless told.")] = "",
    passes: Annotated[int, typer.Option(min=2, help="Times that all ways take turns; medians are given.")] = 7,
    device: Annotated[str, typer.Option(help="cpu, or cuda: torch and Triton on a GPU.")] = "cpu",
    with_: Annotated[
        list[str] | None, typer.Option("--with", help="dace: in an environment of its own, made when missing.")
    ] = None,
    distributed: Annotated[bool, typer.Option(help="Also two processes on the loopback.")] = True,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; results/bench/kernels/DEVICE unless told.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Measure nothing: only write what was measured.")] = False,
    as_json: AsJson = False,
) -> None:
    """Array and server kernels in NumPy, Numba, DaCe, torch and Triton; the same command goes on where it stopped."""
    from motley.bench.kernel_study import study_run
    from motley.bench.kernel_study.study_record import StudyRecord

    plan = study_run.make_plan(
        _names(only), _names(sizes), device, threads=_numbers(threads), passes=passes, dace=_with_dace(with_ or []),
        distributed=distributed, patience=2.5 if device == "cuda" else 5.0,
    )  # fmt: skip
    folder = out or Path("results") / "bench" / "kernels" / device
    record = StudyRecord(folder)
    if not show:
        study_run.check_device(device)
        _measure(plan, record, folder)
    elif not record.units:
        raise InputError(f"Nothing was measured in {shown(folder)} with these kernels; leave out --show to measure.")
    content = _write(record, plan.device, folder)
    if not as_json:
        typer.echo((folder / "table.md").read_text())
    OutputMode(as_json).end(content)


def _with_dace(names: list[str]) -> bool:
    unknown = [name for name in names if name != "dace"]
    if unknown:
        raise InputError(f"--with {unknown[0]} is not known; there is --with dace.")
    return bool(names)


def _measure(plan: StudyPlan, record: StudyRecord, folder: Path) -> None:
    """Carries the study out; what there is when it is interrupted is written."""
    from motley.bench.kernel_study.study_run import carry_out

    try:
        _note_machine(record)
        carry_out(plan, record, lambda text: typer.echo(text, err=True))
        record.add_extra("ended", _now())
    except KeyboardInterrupt:
        if record.units:
            _write(record, plan.device, folder)
        raise Interrupted(
            f"Interrupted; what was measured is in {shown(folder)}, and the same command goes on from there."
        ) from None


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _note_machine(record: StudyRecord) -> None:
    """Where and when the study began; tables that are written elsewhere later on tell it still."""
    from motley.engine.executor import n_cores
    from motley.runtime.records import environment

    if "machine" not in record.extras:
        found = {**environment(), "compiler": _compiler(), "cores": n_cores(), "begun": _now()}
        record.add_extra("machine", found)


def _write(record: StudyRecord, device: str, folder: Path) -> dict[str, Any]:
    """Tables, JSON and the picture of all that the record holds."""
    from motley.bench.kernel_study.study_claims import judge_all
    from motley.bench.kernel_study.study_pages import as_json, markdown
    from motley.bench.kernel_study.study_plot import plot
    from motley.bench.kernel_study.study_table import StudyTable
    from motley.core.files import write_json, write_text

    machine = {**record.extras["machine"], "ended": record.extras.get("ended", "unknown")}
    table = StudyTable(record.units.values(), device, machine["cores"], record.extras)
    claims = judge_all(table)
    content = as_json(table, claims, machine)
    write_text(folder / "table.md", markdown(table, claims, machine))
    write_json(folder / "table.json", content)
    try:
        plot(table, folder / "table.png", machine["gpu"] if device == "cuda" else machine["processor"])
    except ImportError:
        typer.echo("There is no picture: matplotlib is not installed.", err=True)
    return content
