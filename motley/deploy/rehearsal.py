"""A deployment rehearsed on one machine: a broker, a server and agents as processes, and the simulation beside them.

Processes may be killed at random meanwhile; whoever was is started again, as a supervisor would. At the end the model
is compared with the simulation's.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from motley.core.errors import InputError, StateError
from motley.core.part import Method
from motley.deploy.broker import end_broker, free_port
from motley.deploy.event_log import EventLog
from motley.deploy.phased_run import check_phased
from motley.deploy.server_process import Settings, deploy_disk, invite, new_federation, new_server
from motley.methods import make_method
from motley.protocol import PROTOCOLS
from motley.runtime.experiment import Experiment, Given, prepare
from motley.runtime.gan_phase import GanPhase
from motley.runtime.launch import Run, launch
from motley.runtime.phases import TrainPhase, make_phases
from motley.runtime.recipe import Recipe, load


@dataclass(frozen=True)
class Plan:
    """What is rehearsed."""

    recipe: Recipe
    folder: Path
    kills: int = 0
    per_process: int = 1  # agents in one process
    plain: bool = False
    seed: int = 0
    beat: float = 1.0
    lease: float = 1e6
    patience: float = 600.0  # seconds after which a rehearsal is given up


@dataclass
class Child:
    """A process of the rehearsal, which is started again when it was killed."""

    name: str
    command: list[str]
    log: Path
    starts: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def code(self) -> int | None:
        assert self.process is not None
        return self.process.poll()

    def kill(self) -> None:
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.is_file() else []
        return lines[-1][-500:] if lines else "it said nothing"


class Rehearsal:
    """Carries a plan out."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.counts: Counter[str] = Counter()
        self.children: list[Child] = []

    def prepare(self) -> None:
        """Makes the folders, and an invitation for everybody."""
        plan = self.plan
        port = free_port()
        settings = Settings(
            federation=new_federation(),
            host="127.0.0.1",
            port=port,
            names=("127.0.0.1",),
            plain=plan.plain,
            beat=plan.beat,
            lease=plan.lease,
            rehearsal=True,
        )
        new_server(plan.recipe, plan.folder, settings)
        seats = plan.recipe.clients or 0
        logs = plan.folder / "rehearsal"
        logs.mkdir()
        motley = [sys.executable, "-m", "motley"]
        self.children.append(Child("server", [*motley, "resume", str(plan.folder), "--quiet"], logs / "server.log"))
        for first in range(0, seats, plan.per_process):
            some = range(first, min(seats, first + plan.per_process))
            lines = {str(seat): invite(plan.folder, seat, f"agent-{seat}").to_line() for seat in some}
            (logs / f"seats-{first}.json").write_text(json.dumps(lines))
            command = [*motley, "agents", str(logs / f"seats-{first}.json"), "--folder", str(plan.folder / "agents")]
            name = f"agents {first} to {some[-1]}" if len(some) > 1 else f"agent {first}"
            self.children.append(Child(name, command, logs / f"agents-{first}.log"))

    async def run(self, told: Callable[[str], None], look: Callable[[], None]) -> None:
        """From the first process to the end of the run; StateError where it does not end well.

        ``told`` hears what happens to processes, ``look`` is called now and then.
        """
        for child in self.children:
            child.start()
        try:
            async with asyncio.timeout(self.plan.patience):
                await self._watch(told, look)
        except TimeoutError:
            raise StateError(
                f"The rehearsal did not end within {self.plan.patience:g} s; what its processes said is in "
                f"{self.plan.folder / 'rehearsal'}."
            ) from None
        finally:
            for child in self.children:
                child.stop()
            self._end_broker()

    async def _watch(self, told: Callable[[str], None], look: Callable[[], None]) -> None:
        server, *agents = self.children
        next_kill = self._moment()
        while server.code() != 0:
            await asyncio.sleep(0.05)
            look()
            if self.counts["kills"] < self.plan.kills and time.monotonic() > next_kill:
                self._kill(told)
                next_kill = self._moment()
            for child in self.children:
                self._revive(child, killed=child.code() == -signal.SIGKILL, agent=child in agents)
        deadline = time.monotonic() + 10
        while any(child.code() is None for child in agents) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    def _kill(self, told: Callable[[str], None]) -> None:
        """Ends somebody without a word: the server, its broker, or one of the agents' processes."""
        victim = self.rng.choice([None, *self.children])
        if victim is None:
            if not self._end_broker():
                return
        elif victim.code() is None:
            victim.kill()
        else:
            return
        self.counts["kills"] += 1
        told("killed the broker" if victim is None else f"killed {victim.name}")

    def _end_broker(self) -> bool:
        """Ends the broker's process, where there is one."""
        return end_broker(deploy_disk(self.plan.folder).root / "broker")

    def _moment(self) -> float:
        return time.monotonic() + self.rng.uniform(0.5, 3.0)

    def _revive(self, child: Child, killed: bool, agent: bool) -> None:
        code = child.code()
        if code is None or (code == 0 and agent):
            return
        if killed:
            child.start()
        elif code != 0:
            raise StateError(f"The {child.name} ended by itself (exit code {code}): {child.last_words()}")


def simulated(e: Experiment) -> str:
    """The digest of the model that the simulation gives: the same devices, always there, and nothing lost."""
    alone = {"executor": "loop"}
    if e.recipe.phases:
        phases = [{**table, **alone} for table in e.recipe.phases]
        return str(launch(load(e.recipe, {**alone, "phases": phases})).summary["model_sha256"])
    plain = prepare(load(e.recipe, alone), Given(fleet=e.fleet.with_(fortune=())))
    return str(Run(plain).go().summary["model_sha256"])


def comparable(e: Experiment) -> bool:
    """Whether the model does not depend on who is how quick."""
    if e.recipe.phases:
        trained = (one for one in make_phases(e.recipe) if isinstance(one, TrainPhase | GanPhase))
        return all(_in_step(one.recipe, make_method(one.recipe.method, one.recipe.params)) for one in trained)
    return _in_step(e.recipe, e.method)


def _in_step(recipe: Recipe, method: Method) -> bool:
    protocol = recipe.protocol or method.protocol
    punctual = bool(PROTOCOLS[protocol].meta.get("punctual")) and recipe.deadline is None
    side_by_side = protocol in ("mediators", "group_models") and method.has("observe")  # the server learns in between
    return punctual and not side_by_side and recipe.options.get("patience") is None


def report_of(plan: Plan, rehearsal: Rehearsal, e: Experiment) -> dict[str, Any]:
    """What a rehearsal says at its end."""
    summary = json.loads((plan.folder / "summary.json").read_text())
    log = EventLog(deploy_disk(plan.folder))
    arrived = {str(entry.what[0]) for entry in log.entries() if entry.kind == "arrive"}
    receipts = [path.read_text().split() for path in plan.folder.glob("agents/*/receipts")]
    expected = simulated(e) if comparable(e) else None
    return {
        **summary,
        "simulated_sha256": expected,
        "equal": None if expected is None else expected == summary["model_sha256"],
        "kills": rehearsal.counts["kills"],
        "receipts": sum(map(len, receipts)),
        "receipts_lost": len({task for tasks in receipts for task in tasks} - arrived),
        "starts": {child.name: child.starts for child in rehearsal.children},
    }


def check_recipe(e: Experiment) -> None:
    """Refuses what only a simulation can do."""
    if e.fleet.fortune:
        raise InputError(
            f"The fleet '{e.recipe.fleet}' loses or delays updates, which in a deployment happens by itself; leave "
            "those layers out."
        )
    if bool((e.data.sizes == 0).any()):
        raise InputError("Some clients of this partition have no samples; in a deployment every agent has some.")
    if e.recipe.phases:
        check_phased(e.recipe)
    if e.recipe.diagnostics:
        raise InputError("Diagnostics look at clients' samples, which the server of a deployment has not.")
