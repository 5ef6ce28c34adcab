"""An agent: one client of a deployment, beside its data.

It says what it does and has, at once when that changes and every few seconds; the server answers with whatever is
missing. A result is on disk before anybody is told of it, and stays there until the server says that it is safe. What
parts keep on a client stays in the agent's folder, one state for each of the last two tasks.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

import torch

from motley.core.codec import Content
from motley.core.errors import MotleyError, TrainingError
from motley.core.layout import Layout
from motley.core.part import Method
from motley.core.tasks import NOTHING, Assignment, Finished, Kept, Report, Weights
from motley.deploy.disks import Disk, digest_of_file
from motley.deploy.identities import Identity, call_bytes, down_bytes, offer_bytes, verify
from motley.deploy.messages import DONE, VERSION, Blob, Call, Down, Offer, Task, Up, assignment_of, decode, encode
from motley.deploy.policy import Policy
from motley.deploy.renewal import Renewal
from motley.deploy.report_form import report_tree
from motley.deploy.stations import Stations
from motley.deploy.transfer import GoneError, Holder, fetch, until_told
from motley.deploy.wire import SERVER, Link, Message, Subjects, end, happens

OUTBOX, OWN, BLOBS, HELD = "outbox/", "own/", "blobs/", "held/"
CACHED = 4  # blobs that are kept for the next task
HELD_MODELS = 3  # models that are kept for others


class Place(NamedTuple):
    """Where an agent sits, and whom it believes."""

    run_id: str
    seat: int
    server_key: str
    beat: float = 5.0
    largest: int = 1 << 32


class Cupboard:
    """What an agent has on its disk."""

    def __init__(self, disk: Disk, place: Place, identity: Identity) -> None:
        self.disk, self.place, self.identity = disk, place, identity
        self.epoch = int((disk.read("epoch") or b"0").decode())
        self.offers: dict[str, Offer] = {}
        self.allowed: set[tuple[str, str]] = set()  # who may fetch which model
        self._held: dict[str, str] = {}  # digest -> file, the oldest first
        self._blobs: list[str] = []  # digests, the most recently used last
        for name in disk.names(OUTBOX):
            digest, size = digest_of_file(disk, name), disk.size(name) or 0
            self._offer(name.removeprefix(OUTBOX), digest, size)
        for name in disk.names(HELD):
            self._held[digest_of_file(disk, name)] = name
        for name in disk.names(BLOBS):
            disk.delete(name)  # they are fetched again; which of them are whole nobody knows

    def _offer(self, task_id: str, digest: str, size: int, seconds: float = 0.0) -> None:
        bare = Offer(task_id, digest, size, seconds)
        sig = self.identity.sign(offer_bytes(self.place.run_id, self.place.seat, bare))
        self.offers[task_id] = Offer(task_id, digest, size, seconds, sig)

    def heard_of(self, epoch: int) -> bool:
        """Whether a server of this epoch is to be believed; a newer one is remembered."""
        if epoch > self.epoch:
            self.epoch = epoch
            with suppress(OSError):
                self.disk.write("epoch", str(epoch).encode())
        return epoch == self.epoch

    def own(self, task_id: str) -> Kept:
        """What was kept after a task; FileNotFoundError where that is lost."""
        if self.disk.size(OWN + task_id) is None:
            raise FileNotFoundError(OWN + task_id)
        kept: Kept = self.disk.load(OWN + task_id)
        return kept

    def put(self, task_id: str, basis: str, done: Finished, layout: Layout, seconds: float) -> None:
        """Keeps a result: first what stays here, then what is offered."""
        if done.own:
            self.disk.save(OWN + task_id, done.own)
            for name in self.disk.names(OWN):
                if name.removeprefix(OWN) not in (task_id, basis):
                    self.disk.delete(name)
        self._offer(task_id, *self.disk.save(OUTBOX + task_id, report_tree(done.report, layout)), seconds)

    def hold(self, task_id: str, model: Weights) -> Weights:
        """Keeps a model for others; a handle of it."""
        digest, size = self.disk.save(HELD + task_id, model.value)
        self._held[digest] = HELD + task_id
        while len(self._held) > HELD_MODELS:
            self.disk.delete(self._held.pop(next(iter(self._held))))
        return Weights(None, digest, self.place.seat, size)

    def may_have(self, asker: str, digest: str) -> bool:
        """The server may have what is offered to it; whoever was allowed to, a model that is held."""
        offered = asker == SERVER and any(offer.digest == digest for offer in self.offers.values())
        return offered or (asker, digest) in self.allowed

    def drop(self, task_id: str, kept: bool) -> None:
        """Nothing of a task is wanted any more; ``kept``: because its result is safe, which is noted."""
        if self.offers.pop(task_id, None) is not None and kept:
            with suppress(OSError):
                self.disk.append("receipts", f"{task_id}\n".encode())
        self.disk.delete(OUTBOX + task_id)

    def find(self, digest: str) -> str | None:
        """The file of a result that is offered, or of a model that is held."""
        offered = (OUTBOX + offer.task for offer in self.offers.values() if offer.digest == digest)
        return next(offered, None) or self._held.get(digest)

    def blob(self, digest: str) -> str | None:
        """The file of a blob that was fetched."""
        if digest not in self._blobs:
            return None
        self._blobs.remove(digest)
        self._blobs.append(digest)
        return BLOBS + digest

    def fetched(self, digest: str) -> None:
        self._blobs.append(digest)
        while len(self._blobs) > CACHED:
            self.disk.delete(BLOBS + self._blobs.pop(0))


class Agent:
    """Does the tasks of one seat."""

    def __init__(
        self,
        cupboard: Cupboard,
        link: Link,
        stations: Stations,
        policy: Policy | None = None,
        objection: str | None = None,
        renewal: Renewal | None = None,
    ) -> None:
        """``objection``: why nothing of this run will be trained here; ``renewal``: of credentials that end."""
        self.cupboard, self.place, self.link, self.stations = cupboard, cupboard.place, link, stations
        self.policy, self.objection, self.renewal = policy or Policy(), objection, renewal
        self.subjects = Subjects(self.place.run_id)
        self.me = str(self.place.seat)
        self.phase = "idle"
        self.says = ""
        self.trained = 0
        self.receipts: list[tuple[str, str]] = []
        self._todo: dict[str, Task] = {}
        self._doing = ""
        self._job: asyncio.Task[None] | None = None
        self._refuses: dict[str, str] = {}
        self._forgot = ""
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()

    # ------------------------------------------------------------------ life
    async def run(self) -> None:
        """Until the server says that the run has ended."""
        self.link.subscribe(self.subjects.down(self.me), self._on_down)
        self.link.subscribe(self.subjects.all, self._on_call)
        cupboard = self.cupboard
        Holder(self.link, self.subjects, self.me, cupboard.disk, cupboard.find, cupboard.may_have)
        self.link.hooks.add(self.say)
        worker = asyncio.get_running_loop().create_task(self._work())
        try:
            while not self._ended.is_set():
                self.say()
                await happens(self._ended, self.place.beat)
                if worker.done():
                    worker.result()
            self.phase = DONE
            self.say()
        finally:
            await end(worker)

    def say(self) -> None:
        """What it does and has."""
        up = Up(
            VERSION,
            self.place.seat,
            self.cupboard.epoch,
            doing=(*([self._doing] if self._doing else []), *self._todo),
            outbox=tuple(self.cupboard.offers.values()),
            phase=self.phase,
            refuses=tuple(self._refuses.items()),
            forgot=self._forgot,
            says=self.says,
            renew=self.renewal is not None and self.renewal.is_due,
        )
        self.link.publish(self.subjects.up(self.me), encode(up))

    # ------------------------------------------------------------------ listening
    def _on_call(self, message: Message) -> None:
        try:
            call = decode(Call, message.data)
        except ValueError:
            return
        if not verify(self.place.server_key, call_bytes(self.place.run_id, call), call.sig):
            return
        if self.cupboard.heard_of(call.epoch):
            if call.ended:
                self._ended.set()
            else:
                self.say()

    def _on_down(self, message: Message) -> None:
        try:
            down = decode(Down, message.data)
        except ValueError:
            return
        signed = down_bytes(self.place.run_id, self.place.seat, down)
        if not verify(self.place.server_key, signed, down.sig) or not self.cupboard.heard_of(down.epoch):
            return  # not the server's word, or that of one which has been replaced
        if down.kind == "receipt":
            self._settle(down.id, down.why)
        elif down.kind == "task" and down.task is not None:
            self._take(down.id, down.task)
        elif down.kind == "allow":
            self.cupboard.allowed.add((down.asker, down.digest))
        elif down.kind == "credentials" and self.renewal is not None:
            self.renewal.take(down.credentials)

    def _settle(self, task_id: str, why: str) -> None:
        self.receipts.append((task_id, why))
        del self.receipts[:-100]
        self.cupboard.drop(task_id, why == "kept")
        self._todo.pop(task_id, None)
        self._refuses.pop(task_id, None)
        if self._doing == task_id and self._job is not None:
            self._job.cancel()

    def _take(self, task_id: str, task: Task) -> None:
        mine = task.client == self.place.seat and task.run == self.place.run_id and task.id == task_id
        known = task_id == self._doing or task_id in self._todo or task_id in self.cupboard.offers
        if not mine or known or task_id in self._refuses:
            return
        if self.objection is not None:
            self._refuse(task_id, self.objection)
        else:
            self._todo[task_id] = task
            self._wake.set()

    def _refuse(self, task_id: str, why: str) -> None:
        self._refuses[task_id] = why
        self.say()

    # ------------------------------------------------------------------ working
    async def _work(self) -> None:
        while True:
            while not self._todo:
                self._wake.clear()
                await self._wake.wait()
            task_id = next(iter(self._todo))
            task = self._todo.pop(task_id)
            self._doing = task_id
            self._job = asyncio.get_running_loop().create_task(self._do(task_id, task))
            try:
                await asyncio.wait([self._job])
                await self._end(task_id)
            finally:
                self._job.cancel()
                self._doing, self.phase = "", "idle"
            self.say()

    async def _end(self, task_id: str) -> None:
        """What became of a job."""
        assert self._job is not None
        if self._job.cancelled():
            return  # nothing is wanted of it any more
        error = self._job.exception()
        if error is None:
            self.says = ""
        elif isinstance(error, GoneError | OSError):
            self.says = f"task {task_id[:8]} could not be done: {error}"
            await asyncio.sleep(0.5)  # the server will send it again
        elif isinstance(error, MotleyError):
            self.says = str(error)
            self._refuse(task_id, str(error))
        else:
            raise error

    async def _do(self, task_id: str, task: Task) -> None:
        while not self.policy.awake(datetime.now()):
            self.phase = "asleep"
            await asyncio.sleep(30.0)
        self.phase = "fetching"
        try:
            start = Weights(await until_told(lambda: self._get(task.start)), task.start.digest)
        except GoneError as error:
            if SERVER in task.start.holders:
                raise
            self._refuse(task_id, f"holder: the model could not be fetched: {error}")
            return
        down = NOTHING if task.down is None else Content(await self._get(task.down), task.down.digest)
        own = None
        if task.basis:
            try:
                own = self.cupboard.own(task.basis)
            except (FileNotFoundError, ValueError):
                self._forgot = task.basis
                self._refuse(task_id, "what it kept of earlier tasks is lost")
                return
        a, spent = assignment_of(task, start, down).afforded(self.policy.epochs)
        if a.epochs <= 0:
            self._refuse(task_id, f"its policy allows {self.policy.epochs:g} epochs, the task wants {a.floor:g}")
            return
        station = await self.stations.at(task.phase)
        self.phase = "training"
        begun = asyncio.get_running_loop().time()
        done = await station.train(task, a, own)
        report = done.report._replace(reached=spent)
        if task.keep:
            model = handed_on(station.method, a, report)
            report = report._replace(payload=None, held=self.cupboard.hold(task_id, model))
        done = done._replace(report=report)
        self.trained += 1
        self.phase = "offering"
        seconds = asyncio.get_running_loop().time() - begun
        self.cupboard.put(task_id, task.basis, done, station.layout, seconds)

    async def _get(self, blob: Blob) -> object:
        """The content of a blob, fetched where it is not here."""
        if self.cupboard.blob(blob.digest) is None:
            await fetch(
                self.link,
                self.subjects,
                self.me,
                blob.holders,
                blob.digest,
                blob.size,
                disk=self.cupboard.disk,
                name=BLOBS + blob.digest,
                limit=self.place.largest,
                fans=True,
            )
            self.cupboard.fetched(blob.digest)
        return self.cupboard.disk.load(BLOBS + blob.digest)


def handed_on(method: Method, a: Assignment, report: Report) -> Weights:
    """The model that a client hands on: what would have gone over the wire, never the client's own."""
    model = a.start.value + method.decode(report.payload)
    if not bool(torch.isfinite(model).all()):
        raise TrainingError("the model of this task is not finite (NaN or infinite), so it is not handed on")
    return Weights(model)
