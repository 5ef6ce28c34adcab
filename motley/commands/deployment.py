"""``motley serve``, ``invite``, ``join`` and ``rehearse``: runs with real clients."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motley.commands.output import AsJson, Interrupted, OutputMode, Quiet, shown
from motley.commands.runs import Overrides

if TYPE_CHECKING:
    from motley.deploy.rehearsal import Plan
    from motley.runtime.experiment import Experiment
    from motley.runtime.recipe import Recipe

RecipeName = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A recipe: its name or a TOML file.")]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a deployed run.")]


# ------------------------------------------------------------------ the server
def serve(
    recipe: RecipeName,
    overrides: Overrides = None,
    folder: Annotated[Path | None, typer.Option("--folder", help="Where the run is kept; none: below runs/.")] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the broker listens; everywhere, port 4222.")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="Under which agents reach it; may be repeated.")
    ] = None,
    broker: Annotated[str, typer.Option(metavar="URL", help="A broker that is running, in place of our own.")] = "",
    wait_for: Annotated[int, typer.Option(help="Seats that must be taken before the run starts; 0: all.")] = 0,
    beat: Annotated[float, typer.Option(help="Seconds between two words of an agent.")] = 5.0,
    lease: Annotated[float, typer.Option(help="Seconds without a word after which an agent is gone.")] = 60.0,
    mtls: Annotated[bool, typer.Option("--mtls", help="Agents must have certificates.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Neither TLS nor credentials; on this machine only.")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="Keep every update, so that the log can be replayed.")] = False,
    metrics: Annotated[int, typer.Option(metavar="PORT", help="GET /metrics on this machine; 0: none.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Serve a recipe to real clients: start a broker, wait for agents, train."""
    from motley.deploy.server_process import Settings, new_federation, new_server
    from motley.runtime.launch import new_folder
    from motley.runtime.recipe import load

    mode = OutputMode(as_json, quiet)
    resolved = load(recipe, overrides or [])
    experiment = _checked(resolved)
    host, port = _address(listen or ("127.0.0.1:4222" if plain else "0.0.0.0:4222"))
    settings = Settings(
        federation=new_federation(),
        host=host,
        port=port,
        names=tuple(name or (["127.0.0.1"] if host in ("0.0.0.0", "::") else [host])),
        broker=broker,
        plain=plain,
        mtls=mtls,
        beat=beat,
        lease=lease,
        wait_for=wait_for,
        audit=audit,
        metrics=metrics,
    )
    place = folder if folder is not None else new_folder(resolved, Path("runs"))
    new_server(resolved, place, settings)
    serve_folder(experiment, place, mode)


def _address(text: str) -> tuple[str, int]:
    from motley.core.errors import InputError

    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"'{text}' is no address; write host:port, such as 0.0.0.0:4222.")
    return host.strip("[]") or "0.0.0.0", int(port)


def _checked(recipe: Recipe) -> Experiment:
    from motley.deploy.rehearsal import check_recipe
    from motley.runtime.experiment import prepare

    experiment = prepare(recipe)
    check_recipe(experiment)
    return experiment


def serve_folder(experiment: Experiment, folder: Path, mode: OutputMode) -> None:
    """Serves a run that has a folder, from the start or from where it stopped."""
    from motley.deploy.server_process import ServerProcess
    from motley.report.progress import ProgressBar
    from motley.report.summary_tables import print_summary

    def told(server: ServerProcess) -> None:
        if not mode.silent:
            sys.stderr.write(_how_to_invite(folder, experiment))

    with ProgressBar(not mode.silent) as bar:
        try:
            result = asyncio.run(ServerProcess(experiment, folder, [bar]).run(told))
        except KeyboardInterrupt:
            again = shlex.join(["motley", "resume", shown(folder)])
            raise Interrupted(f"Stopped; agents keep what they have. Go on with: {again}") from None
    if not mode.json:
        print_summary(experiment.recipe, {**result.summary, "run": shown(folder)}, mode.silent)
    mode.end(result.summary)


def _how_to_invite(folder: Path, experiment: Experiment) -> str:
    seats = experiment.data.n_clients
    return (
        f"Serving {experiment.recipe.name} in {shown(folder)}: {seats} seats. Invite each agent with\n"
        f"  {shlex.join(['motley', 'invite', shown(folder), '--name', 'hospital-a'])}\n"
    )


def invite(
    folder: Folder,
    name: Annotated[str, typer.Option(help="Who is invited, for people.")] = "",
    seat: Annotated[int, typer.Option(help="Which seat; -1: the first that is free.")] = -1,
    hours: Annotated[float, typer.Option(min=0.01, help="For how long.")] = 48.0,
    as_json: AsJson = False,
) -> None:
    """Print an invitation: one line for one agent, good for one enrolment."""
    from motley.deploy.server_process import invite as make

    line = make(folder, seat, name, hours).to_line()
    if as_json:
        OutputMode(True).end({"invitation": line, "seat": seat, "name": name, "hours": hours})
    else:
        typer.echo(line)


# ------------------------------------------------------------------ agents
def join(
    invitation: Annotated[str | None, typer.Argument(help="What 'motley invite' printed; later not needed.")] = None,
    folder: Annotated[Path, typer.Option("--folder", help="Where it keeps its key and results.")] = Path("agent"),
    data: Annotated[str, typer.Option(help="file.py:function, a CSV file or a folder of them; none: by seat.")] = "",
    target: Annotated[str, typer.Option(help="The column that is learned, for CSV files.")] = "",
    policy: Annotated[Path | None, typer.Option(help="A TOML file with what this agent is willing to do.")] = None,
    name: Annotated[str, typer.Option(help="What the operator sees.")] = "",
    executor: Annotated[str, typer.Option(help="What it trains with: pool, loop or batched.")] = "pool",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    limited: Annotated[bool, typer.Option("--limited", help="This device is computing-limited.")] = False,
    quiet: Quiet = False,
) -> None:
    """Take part in a federation with this machine's data."""
    from motley.deploy.agent_process import AgentProcess, Manner, Membership
    from motley.deploy.policy import Policy

    manner = Manner(data, target, Policy.read(policy), name, executor, device, limited)
    mode = OutputMode(quiet=quiet)

    def told(member: Membership) -> None:
        if not mode.silent:
            typer.echo(f"Seat {member.seat} of federation {member.federation}; this agent is ready.", err=True)

    try:
        agent = asyncio.run(AgentProcess(folder, manner).run(invitation, told))
    except KeyboardInterrupt:
        again = shlex.join(["motley", "join", "--folder", shown(folder)])
        raise Interrupted(f"Left; results are kept. Come back with: {again}") from None
    typer.echo(f"The run has ended; {agent.trained} tasks were trained here.")


def agents(
    lines: Annotated[Path, typer.Argument(help="A JSON file: seat -> invitation.")],
    folder: Annotated[Path, typer.Option("--folder", help="Where each agent has a folder.")] = Path("agents"),
) -> None:
    """Several agents of a rehearsal in one process."""
    from motley.deploy.rehearsal_agents import run_agents

    asyncio.run(run_agents({int(seat): line for seat, line in json.loads(lines.read_text()).items()}, folder))


# ------------------------------------------------------------------ rehearsals
def rehearse(
    recipe: RecipeName,
    overrides: Overrides = None,
    clients: Annotated[int, typer.Option(min=1, help="Agents, each a process of its own.")] = 5,
    kills: Annotated[int, typer.Option(min=0, help="Processes that are killed at random meanwhile.")] = 0,
    chaos: Annotated[int, typer.Option(min=0, help="Instead: so many schedules of faults in virtual time.")] = 0,
    per_process: Annotated[int, typer.Option(min=1, help="Agents in one process.")] = 1,
    plain: Annotated[bool, typer.Option("--plain", help="Neither TLS nor credentials.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of what is killed when.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="Where the folder of the run is made.")] = Path("runs"),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Rehearse a deployment on this machine: broker, server and agents; the model must be the simulation's."""
    from motley.deploy.rehearsal import Plan
    from motley.runtime.launch import new_folder
    from motley.runtime.recipe import load

    mode = OutputMode(as_json, quiet)
    if chaos:
        _chaos(seed, chaos, mode)
        return
    resolved = load(recipe, {**_pairs(overrides or []), "clients": clients})
    if resolved.cohort > clients:
        resolved = load(resolved, {"cohort": clients})
    experiment = _checked(resolved)
    plan = Plan(resolved, new_folder(resolved, out), kills, per_process, plain, seed)
    mode.end(_rehearse(plan, experiment, mode))


def _pairs(overrides: list[str]) -> dict[str, Any]:
    from motley.runtime.recipe import parse_override

    return dict(parse_override(text) for text in overrides)


def _rehearse(plan: Plan, experiment: Experiment, mode: OutputMode) -> dict[str, Any]:
    from motley.deploy.rehearsal import Rehearsal, report_of

    rehearsal = Rehearsal(plan)
    rehearsal.prepare()
    progress = _Followed(plan, mode)
    try:
        asyncio.run(rehearsal.run(progress.say, progress.look))
    except KeyboardInterrupt:
        raise Interrupted(f"Interrupted; what was done is in {shown(plan.folder)}.") from None
    finally:
        progress.close()
    report = report_of(plan, rehearsal, experiment)
    if not mode.json:
        typer.echo(_verdict(report, plan))
    return report


def _verdict(report: dict[str, Any], plan: Plan) -> str:
    sha = report["model_sha256"][:12]
    killed = f", {report['kills']} processes killed meanwhile" if report["kills"] else ""
    head = f"{plan.recipe.clients} agents, {report['rounds']} rounds, {report['wall_s']:.1f} s{killed}: model {sha}"
    if report["equal"] is None:
        return head + " (it depends on the order of arrivals, so there is no simulation to compare it with)."
    return head + (", equal to the simulation's." if report["equal"] else ", NOT the simulation's.")


class _Followed:
    """The server's records as a bar, read from its folder."""

    def __init__(self, plan: Plan, mode: OutputMode) -> None:
        self.plan = plan
        self._bar: Any = None
        self._task: Any = None
        if mode.silent:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("[dim]{task.fields[last]}"),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._bar.start()
        name = f"{plan.recipe.name} [dim]{plan.recipe.method}[/], {plan.recipe.clients} agents"
        self._task = self._bar.add_task(name, total=plan.recipe.rounds, last="starting")

    def say(self, what: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, last=what)

    def look(self) -> None:
        log = self.plan.folder / "rounds.jsonl"
        if self._bar is not None and log.is_file():
            self._bar.update(self._task, completed=log.read_bytes().count(b"\n"))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _chaos(first: int, count: int, mode: OutputMode) -> None:
    from motley.core.errors import TrainingError
    from motley.deploy.fault_schedules import run_schedules

    def told(seed: int, case: str) -> None:
        if not mode.silent:
            sys.stderr.write(f"\r{seed - first + 1} of {count} schedules ({case:<14})")

    total, failures = run_schedules(first, first + count, told)
    if not mode.silent:
        sys.stderr.write("\n")
    for failure in failures:
        typer.echo(failure)
    typer.echo(f"{count} schedules, {len(failures)} failed; " + ", ".join(f"{n} {what}" for what, n in total.items()))
    mode.end({"schedules": count, "failures": failures, "counts": dict(total)})
    if failures:
        raise TrainingError(f"{len(failures)} of {count} schedules of faults failed.")
