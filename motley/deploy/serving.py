"""The server of a deployment: takes in what agents say, has it logged and applied, and answers.

Nothing leaves before its cause is on disk. On each wake-up (a word from an agent, a finished transfer, a timer that is
due) all that has happened is appended to the log and synced; then it is applied; then receipts, closings and tasks go
out. After a crash the log is replayed, and agents' next words bring the rest.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from motley.core.tasks import Weights
from motley.deploy.disks import Disk
from motley.deploy.identities import Identity, call_bytes, down_bytes, offer_bytes, verify
from motley.deploy.logged_run import Effects, Event, LoggedRun
from motley.deploy.messages import DONE, VERSION, Call, Down, Offer, Task, Up, decode, encode
from motley.deploy.roster import Roster
from motley.deploy.transfer import GoneError, Holder, fetch, until_told
from motley.deploy.wire import SERVER, Link, Message, Subjects, happens
from motley.runtime.launch import Result

Thread = Callable[..., Awaitable[Any]]
"""Runs a function beside the event loop, one at a time."""

LINGER = 5.0  # seconds for which the end of a run is told
PULLS = 16  # transfers from agents at a time


class Terms(NamedTuple):
    """What server and agents agree on."""

    beat: float = 5.0  # seconds between two words of an agent
    lease: float = 60.0  # seconds without a word after which an agent is gone
    largest: int = 1 << 32  # bytes of a blob


class Tidings:
    """What happened and is not logged yet, and what operators may want to know."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.wake = asyncio.Event()
        self.counts: Counter[str] = Counter()
        self.refusals: deque[tuple[int, str]] = deque(maxlen=20)  # the last ones: seat, why
        self.seen: dict[int, float] = {}  # when each seat was last heard of
        self.words: dict[int, Up] = {}  # what it said then

    def happened(self, *event: Any) -> None:
        self.events.append(event)
        self.wake.set()

    def refuse(self, client: int, task_id: str, why: str) -> None:
        self.counts["refused"] += 1
        self.refusals.append((client, why))
        self.happened("lose", task_id, f"refused: {why}"[:200])


class Intake:
    """Brings results from agents here; they count once their arrival is logged."""

    def __init__(
        self, book: LoggedRun, tidings: Tidings, link: Link, run_id: str, disk: Disk, terms: Terms, thread: Thread
    ) -> None:
        self.book, self.tidings, self.link, self.disk, self.terms = book, tidings, link, disk, terms
        self.subjects, self.run_id, self.thread = Subjects(run_id), run_id, thread
        self.pulling: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(PULLS)

    def offered(self, client: int, offer: Offer, public_key: str) -> None:
        """An agent has the result of a task that is out."""
        if offer.task in self.pulling:
            return
        if not verify(public_key, offer_bytes(self.run_id, client, offer), offer.sig):
            self.tidings.refuse(client, offer.task, "its signature is wrong")
            return
        self.pulling[offer.task] = asyncio.get_running_loop().create_task(self._pull(client, offer))

    def wanted(self, weights: Weights) -> None:
        """The protocol wants a model that a client holds."""
        if weights.ref not in self.pulling:
            self.pulling[weights.ref] = asyncio.get_running_loop().create_task(self._bring(weights))

    async def _bring(self, weights: Weights) -> None:
        digest, incoming = weights.ref, f"incoming/{weights.ref}"
        try:
            async with self._slots:
                await until_told(lambda: self._fetch(str(weights.holder), digest, weights.size, incoming))
            if await self.thread(self.book.accept_model, digest, incoming):
                self.tidings.happened("brought", digest)
        except (GoneError, ValueError) as error:
            self.tidings.refusals.append((weights.holder or 0, f"its model could not be had: {error}"))
            self.tidings.happened("missed", digest)
        except OSError:
            self.tidings.counts["transfers broken off"] += 1
        finally:
            self.pulling.pop(digest, None)
            self.tidings.wake.set()

    async def _pull(self, client: int, offer: Offer) -> None:
        incoming = f"incoming/{offer.task}"
        try:
            async with self._slots:
                await self._fetch(str(client), offer.digest, offer.size, incoming)
            self.tidings.seen[client] = asyncio.get_running_loop().time()
            if await self.thread(self.book.accept, offer.task, incoming):
                self.tidings.happened("arrive", offer.task, offer.digest)
        except ValueError as error:
            self.tidings.refuse(client, offer.task, str(error))
        except (GoneError, OSError) as error:
            self.tidings.counts["transfers broken off"] += 1  # the agent's next word begins another
            self.tidings.refusals.append((client, f"its result could not be fetched: {error}"))
        finally:
            self.pulling.pop(offer.task, None)
            self.tidings.wake.set()

    async def _fetch(self, holder: str, digest: str, size: int, incoming: str) -> None:
        def told(size: int) -> None:
            self.tidings.counts["bytes received"] += size

        await fetch(
            self.link,
            self.subjects,
            SERVER,
            [holder],
            digest,
            size,
            disk=self.disk,
            name=incoming,
            limit=self.terms.largest,
            told=told,
        )

    def close(self) -> None:
        for pull in self.pulling.values():
            pull.cancel()


class Outgoing:
    """What the server says to agents, each word signed."""

    def __init__(self, run_id: str, link: Link, identity: Identity, counts: Counter[str]) -> None:
        self.run_id, self.link, self.identity, self.counts = run_id, link, identity, counts
        self.subjects = Subjects(run_id)
        self.epoch = 0  # how often the server has started

    def call(self, ended: bool) -> None:
        """To everybody: this server is here, or the run has ended."""
        made = Call(VERSION, self.epoch, ended)
        made.sig = self.identity.sign(call_bytes(self.run_id, made))
        self.link.publish(self.subjects.all, encode(made))

    def task(self, task_id: str, task: Task) -> None:
        """To a client: its task; and to those who hold the model it starts from."""
        for holder in task.start.holders:
            self.allow(holder, str(task.client), task.start.digest)
        self._tell(task.client, Down(VERSION, "task", self.epoch, task_id, task))

    def allow(self, holder: str, asker: str, digest: str) -> None:
        """To a client: to whom it may hand its model."""
        if holder != SERVER:
            self._tell(int(holder), Down(VERSION, "allow", self.epoch, asker=asker, digest=digest))

    def receipt(self, client: int, task_id: str, why: str) -> None:
        """To a client: what became of its result."""
        self.counts[why] += 1
        self._tell(client, Down(VERSION, "receipt", self.epoch, task_id, None, why))

    def credentials(self, client: int, renewed: str) -> None:
        """To a client: new ones, before those it has end."""
        self._tell(client, Down(VERSION, "credentials", self.epoch, credentials=renewed))

    def _tell(self, client: int, down: Down) -> None:
        down.sig = self.identity.sign(down_bytes(self.run_id, client, down))
        self.link.publish(self.subjects.down(str(client)), encode(down))


class Serving:
    """One run, served to agents over a link."""

    def __init__(
        self, book: LoggedRun, run_id: str, link: Link, disk: Disk, identity: Identity, terms: Terms, thread: Thread
    ) -> None:
        """``thread`` runs what computes, so that agents are answered meanwhile."""
        self.book, self.run_id, self.link, self.disk = book, run_id, link, disk
        self.terms, self.thread = terms, thread
        self.subjects = Subjects(run_id)
        self.tidings = Tidings()
        self.outgoing = Outgoing(run_id, link, identity, self.tidings.counts)
        self.intake = Intake(book, self.tidings, link, run_id, disk, terms, thread)
        self.open: dict[str, Task] = {}  # as of the last step
        self.result: Result | None = None
        self._zero = 0.0  # the moment of the event loop that is second 0 of the run
        self.after_step: list[Callable[[], None]] = []
        self.begun: Callable[[], None] = lambda: None  # called once the log has been read
        self.renewed: Callable[[int], str] | None = None  # new credentials of a seat; None: agents need none
        self._due: float | None = None
        self._done = False

    @property
    def roster(self) -> Roster:
        return self.book.attendance.roster

    # ------------------------------------------------------------------ life
    async def run(self) -> Result:
        """Serves to the end of the run."""
        self.outgoing.epoch = await self.thread(self.book.recover)
        self._zero = self._time() - self.book.last
        self.tidings.seen = dict.fromkeys(self._here(), self._time())
        self.link.subscribe(self.subjects.up("*"), self._on_up)
        self.link.hooks.add(self.call)
        Holder(self.link, self.subjects, SERVER, self.disk, self._find, self._may_have, fans=True)
        self.call()
        self.begun()
        try:
            await self._step()
            while not self._done:
                await happens(self.tidings.wake, self._patience())
                self.tidings.wake.clear()
                self._sweep()
                await self._step()
        finally:
            self.intake.close()
        self.result = await self.thread(self.book.finish)
        await self._say_goodbye()
        return self.result

    async def _say_goodbye(self) -> None:
        """Tells everybody that the run has ended, until all have heard it or have had time to."""
        end = self._time() + LINGER
        while self._time() < end:
            self.call()
            self.tidings.wake.clear()
            await happens(self.tidings.wake, 0.3)
            words = self.tidings.words
            if all(client in words and words[client].phase == DONE for client in self._here()):
                return

    def call(self) -> None:
        """Tells everybody that this server is here, or that the run has ended."""
        self.outgoing.call(self.result is not None)

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

    async def _step(self) -> None:
        events, self.tidings.events = self.tidings.events, []
        effects: Effects = await self.thread(self.book.commit, events, self._time() - self._zero)
        if effects.started:
            self._zero = self._time()
        self.open, self._due, self._done = effects.open, effects.due, effects.done
        for client, task_id in effects.kept:
            self.outgoing.receipt(client, task_id, "kept")
        for client, task_id in effects.closed:
            self.outgoing.receipt(client, task_id, "closed")
        for task_id in effects.fresh:
            self.outgoing.task(task_id, self.open[task_id])
        for digest, weights in effects.wanted.items():
            self.outgoing.allow(str(weights.holder), SERVER, digest)
            self.intake.wanted(weights)
        for tell in self.after_step:
            tell()

    def _patience(self) -> float:
        left = self.terms.beat if self._due is None else self._due - (self._time() - self._zero)
        return min(max(0.0, left) + 1e-4, self.terms.beat)

    def _sweep(self) -> None:
        """Agents that have been silent for too long are gone, and their tasks with them."""
        now = self._time()
        for client in self._here():
            if now - self.tidings.seen.get(client, now) > self.terms.lease:
                self.tidings.counts["gone"] += 1
                self.tidings.happened("gone", client)
                self._lose_all(client, "no word")

    def evict(self, client: int) -> None:
        """Has a client thrown out: its tasks are lost, and what it says from then on is not heard."""
        self.tidings.happened("evict", client)
        self._lose_all(client, "evicted")

    def _lose_all(self, client: int, why: str) -> None:
        for task_id, task in self.open.items():
            if task.client == client and (why == "evicted" or task_id not in self.intake.pulling):
                self.tidings.happened("lose", task_id, why)

    def _here(self) -> list[int]:
        return [int(client) for client in self.book.attendance.here.nonzero()[0]]

    # ------------------------------------------------------------------ listening
    def _on_up(self, message: Message) -> None:
        try:
            up = decode(Up, message.data)
            client = int(message.last)
        except ValueError:
            self.tidings.counts["unreadable"] += 1
            return
        known = client in self.roster.seats and client not in self.roster.evicted
        if up.client != client or not known or up.v != VERSION:
            self.tidings.counts["unknown"] += 1  # the subject is what the broker vouches for
            return
        self.tidings.seen[client], self.tidings.words[client] = self._time(), up
        if not self.book.attendance.here[client]:
            self.tidings.happened("here", client)
        self._renew(client, up)
        if self.result is None:
            self._answer(client, up)
        elif up.phase == DONE:
            self.tidings.wake.set()
        else:
            self.call()

    def _renew(self, client: int, up: Up) -> None:
        if up.renew and self.renewed is not None:
            self.outgoing.credentials(client, self.renewed(client))

    def _answer(self, client: int, up: Up) -> None:
        """Whatever is missing on the agent's side."""
        refused = dict(up.refuses)
        for offer in up.outbox:
            if self._mine(client, offer.task):
                self.intake.offered(client, offer, self.roster.seats[client].public_key)
            else:
                self.outgoing.receipt(client, offer.task, "kept" if self.book.came(client, offer.task) else "closed")
        for task_id in (*up.doing, *refused):
            if not self._mine(client, task_id):
                self.outgoing.receipt(client, task_id, "closed")
            elif task_id in refused:
                self._declined(client, task_id, refused[task_id], up.forgot)
        self._repair(client, {*up.doing, *refused, *(offer.task for offer in up.outbox)})

    def _repair(self, client: int, known: set[str]) -> None:
        """Sends the tasks again of which an agent has not heard."""
        for task_id in [name for name, task in self.open.items() if task.client == client]:
            if task_id not in known and task_id not in self.intake.pulling:
                self.tidings.counts["resent"] += 1
                self.outgoing.task(task_id, self.open[task_id])

    def _mine(self, client: int, task_id: str) -> bool:
        """Whether a task is out and this client's."""
        task = self.open.get(task_id)
        return task is not None and task.client == client

    def _declined(self, client: int, task_id: str, why: str, forgot: str) -> None:
        if forgot and forgot == self.open[task_id].basis:
            self.tidings.happened("forgot", client)
        self.tidings.counts["declined"] += 1
        self.tidings.refusals.append((client, why))
        self.tidings.happened("lose", task_id, f"declined: {why}"[:200])

    # ------------------------------------------------------------------ blobs
    def _find(self, digest: str) -> str | None:
        return None if self.book.core is None else self.book.core.blobs.find(digest)

    def _may_have(self, asker: str, digest: str) -> bool:
        """Agents may have what one of their tasks names."""
        mine = (task for task in self.open.values() if str(task.client) == asker)
        return any(digest in (task.start.digest, task.down.digest if task.down else "") for task in mine)
