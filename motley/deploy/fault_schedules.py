"""Random schedules of faults against the real server and agents, and what must hold whatever happens.

Server, agents and broker are killed, also in the middle of an operation of their disks; lines are cut; messages are
lost, doubled and reordered; disks fill up. Then: whatever was acknowledged is in the log; no update counts twice; the
log, replayed with updates that are trained anew, gives the same model; where everybody answered and the protocol waits
for all, it is the simulation's model; and once the faults end, so does the run.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from motley.core.errors import StateError
from motley.core.tasks import Assignment, Finished, Kept
from motley.deploy.agent import Agent, Cupboard, Place
from motley.deploy.blob_store import BlobStore
from motley.deploy.core import Core, Plain
from motley.deploy.event_log import Entry, EventLog
from motley.deploy.fault_processes import (
    CASES,
    IDENTITIES,
    Case,
    Fuse,
    FusedDisk,
    FusedLink,
    KilledError,
    Process,
    WorldLoop,
    current_node,
    inline,
    roster_of,
)
from motley.deploy.fault_world import MemoryDisk, Network
from motley.deploy.field_carrier import Attendance
from motley.deploy.logged_run import LoggedRun
from motley.deploy.messages import Task
from motley.deploy.replaying import Retrained, replay
from motley.deploy.serving import Serving, Terms
from motley.deploy.stations import OneStation, Station
from motley.deploy.transfer import jitter
from motley.runtime.checkpoint import flat_sha256

KINDS = ("calm", "patient", "leases")
LONGEST = 3000.0  # virtual seconds after which a schedule counts as stuck


class FaultSchedule:
    """One schedule: a server, its agents, a network, and what befalls them."""

    def __init__(self, seed: int, case: Case, kind: str) -> None:
        self.rng, self.case, self.kind = random.Random(seed), case, kind
        jitter.seed(seed)
        harsh = kind != "calm"
        drop = self.rng.choice([0, 0.02, 0.1]) if harsh else 0.0
        double = self.rng.choice([0, 0.05]) if harsh else 0.0
        self.network = Network(random.Random(seed + 1), drop, double)
        self.loop = WorldLoop()  # type: ignore[abstract]
        self.disks: dict[str, MemoryDisk] = {}
        self.processes: dict[str, Process] = {}
        self.counts: Counter[str] = Counter()
        self.kept: set[str] = set()  # tasks that an agent was told are safe
        self.lease = 12.0 if kind == "leases" else 1e9
        self.result_sha = ""

    @property
    def nodes(self) -> list[str]:
        return ["s", *(str(client) for client in range(self.case.experiment.data.n_clients))]

    # ------------------------------------------------------------------ processes
    def start(self, node: str) -> None:
        if node in self.processes or self.result_sha:
            return
        disk = self.disks.setdefault(node, MemoryDisk(self.rng))
        fuse = Fuse(self.rng, lambda: self._die(node))
        link = FusedLink(self.network, node, fuse)
        token = current_node.set(node)
        try:
            made = self._server(disk, link, fuse) if node == "s" else self._agent(node, disk, link, fuse)
            self.processes[node] = Process(made, link, fuse)
            self.loop.create_task(self._live(node, made))
        except KilledError:
            self.loop.call_later(1.0, self.start, node)
        finally:
            current_node.reset(token)

    def _server(self, disk: MemoryDisk, link: FusedLink, fuse: Fuse) -> Serving:
        e, seen = self.case.experiment, FusedDisk(disk, fuse)
        attendance = Attendance(roster_of(e))

        def new_core(attendance: Attendance, saved: Callable[[int], None]) -> Core:
            return Core(e, self.case.run_id, attendance, seen, BlobStore(seen), folder=self.folder, saved=saved)

        book = LoggedRun(Plain(new_core), attendance, seen, e.data.n_clients, audit=False)
        terms = Terms(beat=3.0, lease=self.lease, largest=1 << 20)
        return Serving(book, self.case.run_id, link, seen, IDENTITIES[0], terms, inline)

    def _agent(self, node: str, disk: MemoryDisk, link: FusedLink, fuse: Fuse) -> Agent:
        place = Place(self.case.run_id, int(node), IDENTITIES[0].public, beat=3.0, largest=1 << 20)
        e = self.case.experiment
        cupboard = Cupboard(FusedDisk(disk, fuse), place, IDENTITIES[int(node) + 1])
        return Agent(cupboard, link, OneStation(Station.of(e, self._train)))

    async def _train(self, task: Task, a: Assignment, own: Kept | None) -> Finished:
        await asyncio.sleep(self.rng.uniform(1, 15) * (3 if self.rng.random() < 0.1 else 1))
        self.counts["trained"] += 1
        return self.case.trainer(task.id, a, own)

    async def _live(self, node: str, process: Serving | Agent) -> None:
        try:
            result = await process.run()
        except KilledError:
            return
        except OSError:
            self.counts["stopped by a full disk"] += 1
            self.loop.call_soon(self.kill, node, "")
        except StateError:
            self.counts["server stopped by a full disk"] += 1
            self.loop.call_soon(self.kill, node, "")
        else:
            if result is not None:
                self.result_sha = result.summary["model_sha256"]

    def _die(self, node: str) -> None:
        self.loop.call_soon(self.kill, node, "in the middle of an operation")

    def kill(self, node: str, how: str = "") -> None:
        process = self.processes.pop(node, None)
        if process is None:
            return
        self._look_at_receipts(process)
        process.fuse.alive = False
        process.link.close()
        for task in self.loop.tasks.pop(node, []):
            task.cancel()
        if isinstance(process.what, Serving) and process.what.book.core is not None:
            process.what.book.core.close()  # a process that ends lets go of its directory
        if self.result_sha:
            return
        self.disks[node].crash()
        self.counts[f"killed: {'server' if node == 's' else 'agent'} {how}".rstrip()] += 1
        self.loop.call_later(self.rng.uniform(0.5, 8), self.start, node)

    # ------------------------------------------------------------------ from beginning to end
    def go(self) -> None:
        """Carries the schedule out and looks at what it left; AssertionError where something does not hold."""
        with _folder() as self.folder:
            try:
                self.loop.run(self._main())
                self._check()
            finally:
                for node in list(self.processes):
                    self.kill(node)
                self.loop.settle()

    async def _main(self) -> None:
        for node in self.nodes:
            self.start(node)
        faults = None if self.kind == "calm" else self.loop.create_task(Faults(self).befall(150.0))
        while not self.result_sha:
            await asyncio.sleep(1.0)
            assert self.loop.time() < LONGEST, f"the run does not end: {self._where()}"
        if faults is not None:
            faults.cancel()
        for node in list(self.processes):
            self.kill(node)
        await asyncio.sleep(0.1)  # they end

    def _look_at_receipts(self, process: Process) -> None:
        if isinstance(process.what, Agent):
            self.kept |= {task for task, why in process.what.receipts if why == "kept"}

    def _where(self) -> str:
        server = self.processes.get("s")
        core = server.what.book.core if server is not None and isinstance(server.what, Serving) else None
        return "no server" if core is None else f"round {core.round}, {len(core.carrier.outside.open)} tasks out"

    # ------------------------------------------------------------------ what must hold
    def _check(self) -> None:
        entries = list(EventLog(self.disks["s"]).entries())
        arrived = [entry.what[0] for entry in entries if entry.kind == "arrive"]
        assert len(arrived) == len(set(arrived)), "an update came in twice"
        assert self.kept <= set(arrived), "an acknowledged update is not in the log"
        assert replayed(self.case, entries) == self.result_sha, "the log, trained anew, gives another model"
        if self._must_equal():
            assert self.result_sha == self.case.simulated, "not the simulation's model"
            self.counts["equal to the simulation"] += 1
        self._count(entries, len(arrived))

    def _must_equal(self) -> bool:
        """Whether everybody answered and nothing depends on who was quick."""
        rolls_back = self.case.name == "mediators" and self.kind != "calm"  # a dead holder changes the walk
        return self.case.simulated is not None and self.lease > 1e6 and not rolls_back

    def _count(self, entries: list[Entry], arrived: int) -> None:
        self.counts["schedules"] += 1
        self.counts["arrived"] += arrived
        self.counts["tasks lost"] += sum(entry.kind == "lose" for entry in entries)
        self.counts["virtual seconds"] += int(self.loop.time())
        self.counts.update({f"messages {what}": n for what, n in self.network.counts.items()})


class Faults:
    """What befalls the processes, lines and disks of a schedule."""

    def __init__(self, world: FaultSchedule) -> None:
        self.world = world

    async def befall(self, until: float) -> None:
        """Whatever happens until a moment."""
        kinds: dict[str, Callable[[str], None]] = {
            "kill": self.world.kill,
            "fuse": self._light,
            "cut": self._cut,
            "broker": self._restart_broker,
            "full": self._fill,
        }
        while self.world.loop.time() < until:
            await asyncio.sleep(self.world.rng.expovariate(1 / 6.0))
            what = self.world.rng.choices(list(kinds), [5, 4, 3, 1, 1])[0]
            kinds[what](self.world.rng.choice(["s", *self.world.nodes]))

    def _light(self, node: str) -> None:
        if node in self.world.processes:
            self.world.processes[node].fuse.left = self.world.rng.randint(1, 12)

    def _cut(self, node: str) -> None:
        self.world.counts["lines cut"] += 1
        self.world.network.cut.add(node)
        self.world.loop.call_later(self.world.rng.uniform(1, 25), self._mend, node)

    def _mend(self, node: str) -> None:
        self.world.network.cut.discard(node)
        self._back([node])

    def _restart_broker(self, node: str) -> None:
        self.world.counts["broker restarts"] += 1
        self.world.network.restarts += 1
        self.world.network.down = True

        def up() -> None:
            self.world.network.down = False
            self._back(list(self.world.processes))

        self.world.loop.call_later(self.world.rng.uniform(0.2, 6), up)

    def _back(self, nodes: list[str]) -> None:
        """Lines that are back tell their processes so."""
        for node in nodes:
            process = self.world.processes.get(node)
            for hook in list(process.link.hooks) if process else ():
                current_node.set(node)
                with suppress(KilledError):
                    hook()
        current_node.set("")

    def _fill(self, node: str) -> None:
        self.world.counts["disks filled"] += 1
        disk = self.world.disks.get(node)
        if disk is not None:
            disk.full = True
            self.world.loop.call_later(self.world.rng.uniform(1, 10), setattr, disk, "full", False)


@contextmanager
def _folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="motley-", dir=memory if memory.is_dir() else None))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def replayed(case: Case, entries: list[Entry]) -> str:
    """The digest of the model that a log gives with updates trained anew."""
    spool = Retrained(case.experiment.method, case.plain)
    disk = MemoryDisk(random.Random(0))
    attendance = Attendance(roster_of(case.experiment))
    return flat_sha256(replay(case.experiment, case.run_id, attendance, entries, disk, spool).params)


def schedule(seed: int, cases: Callable[[str], Case], only: str | None = None) -> FaultSchedule:
    """The schedule of a seed."""
    rng = random.Random(seed * 7919)
    name = only or rng.choice(list(CASES))
    kind = rng.choices(KINDS, [1, 4, 5])[0]
    return FaultSchedule(seed, cases(name), kind)


def run_schedules(
    first: int, last: int, told: Callable[[int, str], None] | None = None
) -> tuple[Counter[str], list[str]]:
    """Carries out the schedules of some seeds: what was counted, and the failures, one sentence each."""
    torch.set_num_threads(1)
    made: dict[str, Case] = {}

    def case(name: str) -> Case:
        if name not in made:
            made[name] = Case.make(name)
        return made[name]

    total: Counter[str] = Counter()
    failures: list[str] = []
    for seed in range(first, last):
        world = schedule(seed, case)
        try:
            world.go()
        except Exception as error:
            failures.append(f"seed {seed} ({world.case.name}, {world.kind}): {type(error).__name__}: {error}")
        total.update(world.counts)
        if told is not None:
            told(seed, world.case.name)
    return total, failures
