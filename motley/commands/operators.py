"""``motley status``, ``evict`` and ``replay``: for those who run a federation."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from motley.commands.output import AsJson, Interrupted, OutputMode, shown

Folder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a deployed run.")]


def status(
    folder: Folder,
    watch: Annotated[bool, typer.Option("--watch", help="Again every second, until Ctrl-C or the run's end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show who is there, what they do, and what is wrong."""
    from motley.deploy.server_process import deploy_disk, opened
    from motley.deploy.status_page import read_status

    opened(folder)
    disk = deploy_disk(folder)
    if not watch:
        _show(read_status(disk), folder, as_json)
        return
    try:
        while True:
            facts = read_status(disk)
            if not as_json:
                typer.echo("\033[2J\033[H", nl=False)
            _show(facts, folder, as_json)
            if facts["phase"] == "done":
                return
            time.sleep(1.0)
    except KeyboardInterrupt:
        raise Interrupted("Stopped looking; the run goes on.") from None


def _show(facts: dict[str, Any], folder: Path, as_json: bool) -> None:
    if as_json:
        OutputMode(True).end(facts)
    else:
        typer.echo(status_text(facts, shown(folder)))


COLUMNS = "{seat:>4}  {name:<16}{state:<10}{task:<10}{heard:<8}{samples:>8}  {note}"


def status_text(facts: dict[str, Any], folder: str) -> str:
    """The status as a person reads it."""
    head = f"{folder} · {facts['name']}/{facts['method']} · {_phase(facts)} · log {facts['log']}"
    heads = {"seat": "seat", "name": "name", "state": "state", "task": "task", "heard": "heard"}
    lines = [head, COLUMNS.format(**heads, samples="samples", note="note").rstrip()]
    for seat in facts["seats"]:
        told = {
            "seat": seat["seat"],
            "name": seat["name"][:15] or "-",
            "state": seat["state"],
            "task": seat["task"] or "-",
            "heard": "-" if seat["heard"] is None else f"{seat['heard']:.0f} s",
            "samples": "" if seat["samples"] is None else f"{seat['samples']:,}".replace(",", " "),
        }
        lines.append(COLUMNS.format(**told, note=seat["says"]).rstrip())
    broker = facts["broker"]
    if broker["connections"] is not None:
        megabytes = broker["memory"] / 1e6
        up = f"broker up {broker['uptime']} · {broker['connections']} connections · {broker['slow']} slow"
        lines.append(f"{up} · {megabytes:.0f} MB")
    lines += [f"seat {refused['seat']}: refused, {refused['why']}" for refused in facts["refusals"][-5:]]
    return "\n".join([*lines, *([facts["trouble"]] if facts["trouble"] else [])])


def _phase(facts: dict[str, Any]) -> str:
    phase = facts["phase"]
    if phase == "waiting":
        return f"waiting for {facts['missing']} more seats"
    if phase == "stopped":
        return f"no word from the server for {facts['age']:.0f} s; go on with 'motley resume'"
    return f"round {facts['round']} of {facts['rounds']}" + (" · done" if phase == "done" else "")


def evict(
    folder: Folder,
    seat: Annotated[int, typer.Argument(min=0, help="Which seat.")],
    as_json: AsJson = False,
) -> None:
    """Throw an agent out.

    Its credentials are void, its tasks are lost. A new invitation may fill the seat.
    """
    from motley.core.errors import InputError
    from motley.deploy.operating import order_eviction
    from motley.deploy.server_process import deploy_disk, opened

    seats = opened(folder).clients or 0
    if seat >= seats:
        raise InputError(f"There is no seat {seat}; this federation has the seats 0 to {seats - 1}.")
    order_eviction(deploy_disk(folder), seat)
    if as_json:
        OutputMode(True).end({"seat": seat, "evicted": True})
    else:
        typer.echo(f"Seat {seat} is out as soon as the server has read this; 'motley status' shows it.")


def replay(folder: Folder, as_json: AsJson = False) -> None:
    """Make the model of a deployed run again from its log.

    Offline, and compared with the model that the run gave.
    """
    from motley.core.errors import StateError
    from motley.deploy.auditing import replay_folder

    found = replay_folder(folder)
    told = json.loads((folder / "summary.json").read_text()).get("model_sha256")
    report = {"model_sha256": told, "replayed_sha256": found.digest, "equal": found.digest == told, "how": found.how}
    if not as_json:
        verdict = "the same model" if report["equal"] else "ANOTHER model"
        typer.echo(f"{found.entries} entries, {found.how}: {verdict} ({found.digest[:12]}).")
    OutputMode(as_json).end(report)
    if not report["equal"]:
        raise StateError("The log does not give this run's model; the folder was changed, or the machine differs.")
