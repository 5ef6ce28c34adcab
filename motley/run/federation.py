"""The federation on a virtual clock: dispatches tasks, trains them in batches, delivers them at their finish times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from motley.client.trainer import Training
from motley.core.keys import Key, fold_each
from motley.core.types import Outcomes, Plan, Pool, Round, Tree, Updates, tree_bytes
from motley.data.federated import FederatedData
from motley.fleet.fleet import Fate, Fleet
from motley.nets.cost import Cost
from motley.protocol.federation import PROTOCOLS, Arrival, Flight, Weights
from motley.run.charges import Charges, Ticket, profiled
from motley.run.clock import VirtualLoop
from motley.run.doubts import Doubts
from motley.run.executors.base import Executor, Job
from motley.run.executors.outcomes import apart
from motley.run.flights import (
    Aloft,
    Countdown,
    Event,
    Flock,
    Flying,
    Schedule,
    Tally,
    resolve,
    settle,
    silent,
    stack,
    trained_layers,
    work,
)
from motley.run.store import ClientStore
from motley.server.server import Server

EMPTY_ROUND_SECONDS = 60.0  # how long the server waits before it looks again when nobody can be reached


class SimulatedFederation:
    """Implements `protocol.Federation` for one run."""

    def __init__(
        self,
        *,
        training: Training,
        data: FederatedData,
        fleet: Fleet,
        cost: Cost,
        executor: Executor,
        server: Server,
        params: Tensor,
        key: Key,
        schedule: Schedule,
        store: ClientStore,
        options: dict[str, Any] | None = None,
        after_round: Callable[[SimulatedFederation, Round, Tally], None] | None = None,
    ) -> None:
        self.training = training
        self.data = data
        self.fleet = fleet
        self.cost = cost
        self.executor = executor
        self.server = server
        self.weights = Weights(params)
        self.shown: Weights | None = None
        self.memory: dict[str, Tree] = {}
        self.measures: dict[str, Tree] = {}  # what diagnostics remember from round to round
        self.key = key
        self.schedule = schedule
        self.store = store
        self.options = dict(options or {})
        self.after_round = after_round
        self.loop = VirtualLoop(on_idle=self._train_waiting)  # type: ignore[abstract]
        self.round = 0
        self.tally = Tally()
        self.came: Updates | None = None  # what was last handed on or merged in this round
        self._doubts = Doubts(drop=schedule.on_bad_update == "drop")
        self._air = Flock()  # dispatched, neither delivered nor given up
        self._inbox = Flock()  # arrived, not yet taken by the protocol
        self._held: list[Flying] = []  # delayed until a round begins
        self._launched = 0
        self._news: asyncio.Future[None] | None = None
        self._ended: list[tuple[Ticket, bool]] = []  # tasks over since the last round's end, and whether they arrived
        self._choices = 0  # selections made in this round
        self.chosen = np.zeros(data.n_clients, np.int32)  # tasks each client was given
        self.heard = np.zeros(data.n_clients, np.int32)  # updates of each client that were merged or handed on
        self.trace: list[Event] | None = None  # set to a list to record every event
        self.charges = Charges(training, data, fleet, cost)
        self._sizes = torch.from_numpy(data.sizes.astype(np.float32))
        seconds = profiled(training, data, fleet, cost, schedule.epochs)
        self._profile = torch.from_numpy(seconds.astype(np.float32))
        entry = PROTOCOLS.entries.get(training.method.protocol)
        self._punctual = entry is not None and bool(entry.meta.get("punctual"))  # updates are never old

    # ------------------------------------------------------------------ what protocols call
    @property
    def now(self) -> float:
        return self.loop.time()

    @property
    def n_clients(self) -> int:
        return self.data.n_clients

    @property
    def profile(self) -> list[float]:
        seconds: list[float] = self._profile.tolist()
        return seconds

    @property
    def flights(self) -> list[Flight]:
        return list(self._air)

    async def rounds(self) -> AsyncIterator[Round]:
        while self.round < self.schedule.rounds:
            self.round += 1
            self.came = None
            rnd = self._round()
            self._release()
            await asyncio.sleep(0)  # what was held back for this round settles now
            self._choices = 0
            yield rnd
            self._conclude(rnd)
            if self.after_round is not None:
                self.after_round(self, rnd, self.tally)
            self.tally = Tally()

    def _round(self) -> Round:
        return Round(
            number=self.round,
            key=self.key.fold("round", self.round),
            cohort=self.schedule.cohort,
            now=self.now,
            deadline=self.schedule.deadline,
        )

    def select(
        self,
        rnd: Round,
        count: int | None = None,
        *,
        among: Collection[int] | None = None,
        without: Collection[int] = (),
        waiting: bool = False,
    ) -> list[int]:
        here = self.fleet.present(rnd.number, self.now)
        if among is not None:
            here &= np.isin(np.arange(len(here)), list(among))
        here[list(without)] = False
        waiting = waiting and not self.training.method.has("keep")
        for flight in self._air:
            if not (waiting and flight.held):
                here[flight.client] = False
        pool = Pool(torch.from_numpy(np.flatnonzero(here)), self._sizes, self._profile)
        if self._choices:
            rnd = rnd._replace(key=rnd.key.fold("choice", self._choices))
        self._choices += 1
        return self.server.select(rnd if count is None else rnd._replace(cohort=count), pool)

    def dispatch(self, rnd: Round, clients: Sequence[int], weights: Sequence[Weights] | None = None) -> list[Flight]:
        if not clients:
            return []
        ids = list(clients)
        wanted = torch.full((len(ids),), self.schedule.epochs)
        lr = self.schedule.lr * self.schedule.lr_decay ** (rnd.number - 1)
        limited = torch.from_numpy(self.fleet.limited[ids].astype(np.float32))
        plan = Plan(wanted, wanted.clone(), torch.full((len(ids),), lr), torch.zeros(len(ids)), limited)
        plan = self.server.plan(rnd, ids, plan)
        down, dials = self.server.send(rnd), self.server.dials(rnd)
        starts = list(weights) if weights is not None else [self.weights] * len(ids)
        tickets: list[Ticket] = []
        columns = zip(plan.epochs.tolist(), plan.floor.tolist(), plan.lr.tolist(), plan.partial.tolist(), strict=True)
        fates = map(Fate._make, zip(*(column.tolist() for column in self.fleet.fates(ids, rnd.number)), strict=True))
        for client, start, (epochs, floor, rate, partial), fate in zip(ids, starts, columns, fates, strict=True):
            worked, done = work(epochs, floor, fate.affordable, bool(partial))
            ticket = Ticket(client, rnd.number, start, down, dials, epochs, floor, worked, done, rate, self.now, fate)
            tickets.append(ticket)
            self._note("dispatch", ticket)
        flights = [self._board(ticket) for ticket in tickets]
        self._take_off(flights)
        self.tally.bytes_down += sum(map(self.charges.download_bytes, tickets))
        self.tally.participants.extend(ids)
        np.add.at(self.chosen, ids, 1)
        return list(flights)

    async def gather(self, flights: Sequence[Flight], deadline: float | None = None) -> list[Arrival]:
        mine = [flight for flight in flights if isinstance(flight, Flying)]
        if not mine:
            await self.sleep(EMPTY_ROUND_SECONDS)
            return []
        timeout = None
        if deadline is not None:
            timeout = max(0.0, mine[0].ticket.dispatched + deadline - self.now)
        await Countdown(mine, self.loop).wait(timeout)
        arrivals: list[Arrival] = []
        for flight in mine:
            if flight.arrival is not None:
                arrivals.append(self._take(flight))
            elif not flight.given_up and flight in self._air:
                self._give_up(flight)
        return arrivals

    async def arrivals(self, until: float | None = None, at_least: int = 0) -> list[Arrival]:
        while not (at_least and len(self._inbox) >= at_least):
            if until is None and len(self._inbox) + len(self._held) >= len(self._air):
                break  # nothing more can come before the next round
            if until is not None and self.now >= until:
                break
            await self.news(until)
        return self.take()

    async def news(self, until: float | None = None) -> None:
        self._news = self.loop.create_future()
        if until is not None:
            self.loop.call_at(until, resolve, self._news)
        await self._news
        self._news = None

    def take(self, flights: Sequence[Flight] | None = None, at_most: int | None = None) -> list[Arrival]:
        wanted = None if flights is None else set(map(id, flights))
        ready = [flight for flight in self._inbox if wanted is None or id(flight) in wanted]
        ready.sort(key=lambda flight: (flight.landed_at, flight.number))
        return [self._take(flight) for flight in ready[:at_most]]

    def give_up(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            if isinstance(flight, Flying) and flight in self._air:
                if flight in self._inbox:
                    self._inbox.remove(flight)
                self._give_up(flight)

    def discard(self, arrivals: Sequence[Arrival]) -> None:
        self.tally.late += len(arrivals)
        self.tally.arrived -= len(arrivals)

    def observe(self, rnd: Round, arrivals: Sequence[Arrival]) -> list[Arrival]:
        arrivals = self._sound(arrivals)
        if arrivals:
            self.came = stack(rnd, arrivals)
            with self._doubts.blamed():
                self.server.observe(rnd, self.came)
            self._accept(arrivals)
        return arrivals

    def aggregate(self, rnd: Round, arrivals: Sequence[Arrival], *, observed: bool = False) -> None:
        arrivals = self._sound(arrivals)
        if not arrivals:
            return
        updates = stack(rnd, arrivals)
        with self._doubts.blamed():
            self._merge(rnd, arrivals, updates, observed)
        if not observed:
            self._accept(arrivals)

    def _merge(self, rnd: Round, arrivals: Sequence[Arrival], updates: Updates, observed: bool) -> None:
        if not observed:
            self.came = updates
            if not self._punctual:
                self.tally.stale.extend(rnd.number - one.round for one in arrivals)
            self.server.observe(rnd, updates)
        rnd = rnd._replace(dropped=tuple(ticket.client for ticket, arrived in self._ended if not arrived))
        self.weights = Weights(self.server.aggregate(rnd, self.weights.value, updates))
        if self.trace is not None:
            self.trace.append(Event(self.now, "aggregate", -1, rnd.number))

    def preview(self, rnd: Round, arrivals: Sequence[Arrival]) -> Weights:
        if not arrivals:
            return self.weights
        state = dict(self.server.state)
        value = self.server.aggregate(rnd, self.weights.value, stack(rnd, arrivals))
        self.server.state = state
        return Weights(value)

    def note(self, **numbers: Any) -> None:
        self.tally.notes.update(numbers)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    # ------------------------------------------------------------------ what checkpoints need
    def aloft(self) -> list[Aloft]:
        """Everything in the air, in order of dispatch."""
        held = {flight.number: place for place, flight in enumerate(self._held)}
        landed = {flight.number: place for place, flight in enumerate(self._inbox)}
        return [Aloft(f.ticket, f.finish, held.get(f.number), landed.get(f.number), f.landed_at) for f in self._air]

    def resume(self, round_number: int, now: float, aloft: list[Aloft], upload_bytes: list[int | None]) -> None:
        """Goes back to the end of a round, with these tasks in the air."""
        self.round = round_number
        self.charges.extra_bytes, self.charges.payload_bytes = upload_bytes
        self.loop = VirtualLoop(now, on_idle=self._train_waiting)  # type: ignore[abstract]
        flights = [self._board(one.ticket) for one in aloft]
        for one, flight in sorted(zip(aloft, flights, strict=True), key=lambda pair: pair[0].held or 0):
            flight.finish, flight.landed_at = one.finish, one.landed_at
            if one.held is not None:
                self._hold(flight)
            elif one.landed is None:
                self._take_off([flight])
        landed = [(one.landed, flight) for one, flight in zip(aloft, flights, strict=True) if one.landed is not None]
        if landed:
            self._train(self._untrained())
        for _, flight in sorted(landed, key=lambda pair: pair[0]):
            flight.arrival = self._arrival(flight)
            self._inbox.append(flight)
            settle(flight, True)

    # ------------------------------------------------------------------ the life of a flight
    def _board(self, ticket: Ticket) -> Flying:
        flight = Flying(ticket, self._launched)
        self._launched += 1
        self._air.append(flight)
        return flight

    def _take_off(self, flights: Sequence[Flying]) -> None:
        """Sets the moments of landing; where one can only be known once it is trained, `_train` does that then."""
        if self._needs_outcome_first:
            flights = [f for f in flights if f.finish is not None or f.outcome is not None or silent(f.ticket)]
        new = [flight for flight in flights if flight.finish is None]
        seconds = self.charges.durations([flight.ticket for flight in new], list(map(trained_layers, new)))
        for flight, duration in zip(new, seconds, strict=True):
            flight.finish = flight.ticket.dispatched + duration
        for flight in flights:
            assert flight.finish is not None
            self.loop.deliver_at(flight.finish, flight.number, self._come, flight)

    def _come(self, flight: Flying) -> None:
        """The moment of landing: it lands, is lost, or is held back until a later round begins."""
        ticket = flight.ticket
        if flight.given_up:
            return
        if silent(ticket):
            self.tally.lost += 1
            self._air.remove(flight)
            self._end(flight, False)
            self._note("lose", ticket)
            settle(flight, False)
            self._tell()
        elif ticket.round + ticket.fate.delay_rounds > self.round:
            self._hold(flight)
        else:
            self._touch_down(flight)

    def _touch_down(self, flight: Flying) -> None:
        if flight.given_up:
            return
        if flight.outcome is None:
            self._train(self._untrained())
        flight.arrival = self._land(flight)
        self._inbox.append(flight)
        self._note("arrive", flight.ticket)
        settle(flight, True)
        self._tell()

    def _hold(self, flight: Flying) -> None:
        """Delayed in transmission by whole rounds: waits until that round begins."""
        if flight.outcome is not None:
            flight.outcome = apart(flight.outcome)
        self._held.append(flight)
        flight.held = True
        self._note("hold", flight.ticket)
        settle(flight, False)
        self._tell()

    def _release(self) -> None:
        waiting, self._held = self._held, []
        for flight in waiting:
            if flight.ticket.round + flight.ticket.fate.delay_rounds <= self.round:
                self.loop.call_soon(self._touch_down, flight)
            else:
                self._held.append(flight)

    def _tell(self) -> None:
        """Wakes a protocol that waits for news."""
        resolve(self._news)

    @property
    def _needs_outcome_first(self) -> bool:
        """Whether the time a task takes can only be known after training it."""
        return self.training.method.adaptive or self.charges.extra_bytes is None

    def _train_waiting(self) -> bool:
        """Called when the clock is idle: trains what must be known before time can move on."""
        if not self._needs_outcome_first:
            return False
        waiting = self._untrained()
        if waiting:
            self._train(waiting)
        return bool(waiting)

    def _untrained(self) -> list[Flying]:
        return [flight for flight in self._air if flight.outcome is None and not silent(flight.ticket)]

    def _train(self, flights: list[Flying]) -> None:
        jobs = self._jobs([flight.ticket for flight in flights])
        outcomes = self.executor.run(jobs)
        for flight, job, outcome in zip(flights, jobs, outcomes, strict=True):
            flight.outcome, flight.facts = outcome, job.facts
        if self.charges.extra_bytes is None:
            self.charges.extra_bytes = tree_bytes(outcomes[0].extras)
            if self.training.method.has("encode"):
                self.charges.payload_bytes = tree_bytes(outcomes[0].payload)
        self._take_off([flight for flight in flights if flight.finish is None])

    def _jobs(self, tickets: list[Ticket]) -> list[Job]:
        rows = zip(tickets, self.charges.facts(tickets), self._client_keys(tickets), strict=True)
        return [
            Job(t.client, t.start.value, facts, int(facts.steps), key, t.down, t.dials, self.store.get(t.client))
            for t, facts, key in rows
        ]

    def _client_keys(self, tickets: list[Ticket]) -> list[Key]:
        """The keys of tasks: of the round and the client."""
        rounds, ids = np.array([(ticket.round, ticket.client) for ticket in tickets]).T
        values = np.empty(len(tickets), np.uint64)
        for number in set(rounds.tolist()):
            here = rounds == number
            values[here] = fold_each(self.key.fold("client", number), ids[here])
        return list(map(Key, values.tolist()))

    # ------------------------------------------------------------------ landing
    def _land(self, flight: Flying) -> Arrival:
        flight.landed_at = self.now
        return self._arrival(flight)

    def _arrival(self, flight: Flying) -> Arrival:
        outcome, facts, ticket = flight.outcome, flight.facts, flight.ticket
        assert outcome is not None
        assert facts is not None
        assert flight.landed_at is not None
        return Arrival(
            client=ticket.client,
            round=ticket.round,
            start=ticket.start,
            delta=self.server.decode(outcome.payload),
            trained=outcome.trained,
            extras=outcome.extras,
            own=outcome.own,
            n=facts.n,
            loss=outcome.loss,
            steps=int(facts.steps),
            epochs=ticket.done,
            lr=ticket.lr,
            duration=flight.landed_at - ticket.dispatched,
            width=self.charges.width(ticket),
        )

    def _take(self, flight: Flying) -> Arrival:
        assert flight.arrival is not None
        self._air.remove(flight)
        if flight in self._inbox:
            self._inbox.remove(flight)
        arrival = flight.arrival
        self._end(flight, True)
        self.tally.arrived += 1
        self.tally.bytes_up += self.charges.upload_bytes(flight.ticket, arrival.trained)
        if any(arrival.trained.tolist()):
            self.tally.losses.append((arrival.loss, arrival.n))
        return arrival

    def _give_up(self, flight: Flying) -> None:
        flight.given_up = True
        self._air.remove(flight)
        if flight in self._held:
            self._held.remove(flight)
        self.tally.late += 1
        self._end(flight, False)
        self._note("give up", flight.ticket)

    def _end(self, flight: Flying, arrived: bool) -> None:
        ticket = flight.ticket
        self._ended.append((ticket, arrived))
        self.tally.concluded += 1
        self.tally.stragglers += not arrived or ticket.done < ticket.assigned
        self.tally.dropouts += not arrived

    def _conclude(self, rnd: Round) -> None:
        """Refuses a round that took in updates which are not finite; tells parts how tasks ended."""
        self._doubts.settle()
        if self.training.method.has("conclude"):
            rows = [(t, float(arrived)) for t, arrived in self._ended]
            numbers = [(t.assigned, t.floor, t.worked * came, t.done * came) for t, came in rows]
            columns = torch.tensor(numbers, dtype=torch.float32).reshape(-1, 4).unbind(1)
            ids = torch.tensor([t.client for t, _ in rows], dtype=torch.int64)
            number = torch.tensor([t.round for t, _ in rows], dtype=torch.int64)
            self.server.conclude(rnd, Outcomes(ids, number, *columns))
        self._ended.clear()

    def _note(self, what: str, ticket: Ticket) -> None:
        if self.trace is not None:
            self.trace.append(Event(self.now, what, ticket.client, ticket.round))

    def _sound(self, arrivals: Sequence[Arrival]) -> list[Arrival]:
        """The updates that are taken; the others count as lost."""
        good = self._doubts.sound(arrivals)
        self.tally.lost += len(arrivals) - len(good)
        self.tally.arrived -= len(arrivals) - len(good)
        return good

    def _accept(self, arrivals: Sequence[Arrival]) -> None:
        np.add.at(self.heard, [arrival.client for arrival in arrivals], 1)
        for arrival in arrivals:
            self.store.put(arrival.client, arrival.own)
