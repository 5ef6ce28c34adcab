"""The process of an agent: its folder, its seat, its data, and the line to the broker."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Callable
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import motley
from motley.client.problems import make_problem
from motley.core.errors import InputError, StateError
from motley.core.files import held
from motley.data.dataset import Dataset
from motley.deploy.agent import Agent, Cupboard, Place
from motley.deploy.agent_data import agent_experiment, check_layers, of_so_many_classes, own_dataset
from motley.deploy.agent_phases import NewStation, PhaseStations
from motley.deploy.agent_training import InProcess, seconds_per_epoch
from motley.deploy.certificates import client_files, client_key, request, write_secret
from motley.deploy.credentials import NatsKey
from motley.deploy.disks import FolderDisk
from motley.deploy.enrolment import Invitation, ask_for_seat
from motley.deploy.identities import Identity
from motley.deploy.messages import VERSION, Enrol, Welcome
from motley.deploy.nats_link import Login, NatsLink
from motley.deploy.policy import Policy
from motley.deploy.renewal import Renewal
from motley.deploy.server_process import login_of
from motley.deploy.stations import OneStation, Station, Stations
from motley.methods import make_method
from motley.runtime.experiment import Experiment
from motley.runtime.gan_phase import GanPhase
from motley.runtime.phases import TrainPhase, make_phases
from motley.runtime.recipe import Recipe, load

REHEARSED = 600.0  # seconds that an agent of a rehearsal waits for its broker and its server


@dataclass(frozen=True)
class Membership:
    """What an agent keeps of its enrolment."""

    federation: str
    seat: int
    urls: tuple[str, ...]
    server_key: str
    recipe: str
    beat: float
    largest: int
    ca: str = ""
    claims: str = ""
    classes: int = 0

    def save(self, disk: FolderDisk) -> None:
        disk.write("membership.json", json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def load(cls, disk: FolderDisk) -> Membership | None:
        found = disk.read("membership.json")
        if found is None:
            return None
        content = json.loads(found)
        return cls(**{**content, "urls": tuple(content["urls"])})


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


@dataclass(frozen=True)
class Manner:
    """How an agent takes part: its data, its rules, what it trains with."""

    data: str = ""  # file.py:function, or tables; empty: the recipe's own data, by seat
    target: str = ""
    policy: Policy = field(default_factory=Policy)
    name: str = ""
    executor: str = "pool"
    device: str = "auto"
    limited: bool = False
    rehearsal: bool = False  # its device is that of the recipe's fleet

    def save(self, disk: FolderDisk) -> None:
        """Writes it down for later starts; paths as they are from anywhere."""
        path, colon, name = self.data.partition(":")
        data = f"{Path(path).resolve()}{colon}{name}" if self.data else ""
        told = {**asdict(replace(self, data=data)), "policy": self.policy.model_dump(exclude_defaults=True)}
        disk.write("manner.json", json.dumps(told, indent=1).encode())

    def or_as_before(self, disk: FolderDisk) -> Manner:
        """This, with what was said at an earlier start where nothing is said now."""
        found = json.loads(disk.read("manner.json") or b"{}")
        if found:
            found["policy"] = Policy(**found["policy"])
        said = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != _default(one)}
        return Manner(**{**found, **said})


class AgentProcess:
    """One agent in its folder."""

    def __init__(self, folder: Path, manner: Manner) -> None:
        self.folder = folder
        self.disk = FolderDisk(folder)
        self.manner = manner.or_as_before(self.disk)
        self.identity = Identity.kept(self.disk)
        self.agent: Agent | None = None

    # ------------------------------------------------------------------ taking a seat
    async def join(self, line: str | None) -> tuple[Membership, Experiment]:
        """Takes the seat that an invitation offers, or the one it has."""
        member = Membership.load(self.disk)
        if line is None and member is None:
            raise StateError(f"{self.folder} has no seat yet; give the invitation: motley join 'motley://...'.")
        if line is None or (member is not None and Invitation.from_line(line).federation == member.federation):
            assert member is not None
            return member, self.experiment(member.recipe, member.seat, member.classes)
        return await self._enrol(Invitation.from_line(line))

    async def _enrol(self, invitation: Invitation) -> tuple[Membership, Experiment]:
        if invitation.is_over():
            raise StateError("This invitation has expired; ask for a new one.")
        link = NatsLink(invitation.urls, self._guest(invitation))
        patience = REHEARSED if self.manner.rehearsal else None  # whoever rehearses kills and starts again
        await link.open(patience or 15.0)
        try:
            seen = await ask_for_seat(link, invitation, self._hello(0), patience or 30.0)
            e = self.experiment(seen.recipe, seen.seat, seen.classes)
            self._check(e, seen)
            about = self._about(e, seen.seat)
            if invitation.certificate:
                about.csr = request(client_key(self.folder / "tls"), str(seen.seat))
            welcome = await ask_for_seat(link, invitation, about, patience or 30.0)
        finally:
            await link.close()
        member = self._member(invitation, welcome)
        if welcome.certificate:
            write_secret(self.folder / "tls" / "client.pem", welcome.certificate.encode())
        self.manner.save(self.disk)
        member.save(self.disk)
        if welcome.seat != seen.seat:
            e = self.experiment(welcome.recipe, welcome.seat, welcome.classes)
        return member, e

    def _check(self, e: Experiment, seen: Welcome) -> None:
        """Refuses, before it takes a seat, to take part where its data do not fit or its policy objects."""
        if seen.layers:
            check_layers(e.net, seen.layers)
        objection = self._objection(e)
        if objection is not None:
            raise InputError(f"This agent does not take part: {objection}.")

    def _guest(self, invitation: Invitation) -> Login:
        if not invitation.claims:
            return Login(name="guest")
        key = NatsKey("user", bytes.fromhex(invitation.seed))
        files = None
        if invitation.certificate:
            files = self.folder / "tls" / "guest.pem", self.folder / "tls" / "guest.key"
            write_secret(files[0], invitation.certificate.encode())
            write_secret(files[1], invitation.key.encode())
        return login_of(key, invitation.claims, invitation.ca, "guest", files)

    def _hello(self, n: int) -> Enrol:
        key = NatsKey("user", self.identity.seed)
        return Enrol(VERSION, self.identity.public, self.manner.name, motley.__version__, n, broker_key=key.public)

    def _about(self, e: Experiment, seat: int) -> Enrol:
        """What it tells of itself."""
        enrol = self._hello(int(e.data.sizes[seat]))
        if self.manner.policy.tell_labels and e.data.n_classes:
            enrol.labels = tuple(float(n) for n in e.data.labels_of(seat))
        site = e.site
        if self.manner.rehearsal:
            enrol.flops, enrol.limited = float(e.fleet.flops[seat]), bool(e.fleet.limited[seat])
            enrol.seconds_per_epoch = enrol.n * site.devices.work / enrol.flops
        else:
            enrol.limited = self.manner.limited
            enrol.seconds_per_epoch = seconds_per_epoch(site, seat)
            enrol.flops = enrol.n * site.devices.work / max(enrol.seconds_per_epoch, 1e-9)
        return enrol

    def _member(self, invitation: Invitation, welcome: Welcome) -> Membership:
        if welcome.server_key != invitation.server_key:
            raise StateError("The server that answered is not the one that invited; ask for a new invitation.")
        return Membership(
            welcome.identity,
            welcome.seat,
            invitation.urls,
            welcome.server_key,
            welcome.recipe,
            welcome.beat,
            welcome.largest,
            invitation.ca,
            welcome.credentials,
            welcome.classes,
        )

    def experiment(self, text: str, seat: int, classes: int) -> Experiment:
        """The experiment of a recipe as TOML, with this agent's data."""
        recipe = load(tomllib.loads(text))
        return agent_experiment(recipe, seat, recipe.clients or 1, self._own(recipe, classes))

    def _own(self, recipe: Recipe, classes: int) -> Dataset | None:
        """Its own samples, of which others may hold more classes; None: those of the recipe, by seat."""
        if not self.manner.data:
            return None
        found = own_dataset(self.manner.data, make_problem(recipe.problem), self.manner.target)
        return of_so_many_classes(found, classes)

    def _objection(self, e: Experiment) -> str | None:
        """Why its policy forbids it to take part: in any phase."""
        policy = self.manner.policy
        recipes = [phase.recipe for phase in make_phases(e.recipe) if isinstance(phase, TrainPhase | GanPhase)]
        methods = [(e.recipe.name, one.method, make_method(one.method, one.params)) for one in recipes]
        told = methods or [(e.recipe.name, e.recipe.method, e.method)]
        return next((why for one in told if (why := policy.objection(*one)) is not None), None)

    def stations(self, member: Membership, e: Experiment, new_station: NewStation) -> Stations:
        """Where it works in a run."""
        if not e.recipe.phases:
            return new_station(e)
        own, tells = self._own(e.recipe, member.classes), self.manner.policy.tell_labels
        return PhaseStations(e.recipe, member.seat, own, self.disk, new_station, tells)

    def in_process(self, e: Experiment) -> OneStation:
        """A station whose training is done by processes that can be ended."""
        train = InProcess(e.site, self.manner.executor, self.manner.device)
        return OneStation(Station.of(e, train), train.close)

    # ------------------------------------------------------------------ taking part
    def login(self, member: Membership) -> Login:
        if not member.claims:
            return Login(name=str(member.seat))
        key, files = NatsKey("user", self.identity.seed), client_files(self.folder / "tls")
        return login_of(key, member.claims, member.ca, str(member.seat), files)

    async def run(self, line: str | None = None, told: Callable[[Membership], None] | None = None) -> Agent:
        """Takes part until the run has ended."""
        with held(self.folder):
            member, e = await self.join(line)
            if told is not None:
                told(member)
            stations = self.stations(member, e, self.in_process)
            try:
                return await self.take_part(member, e, stations)
            finally:
                await stations.close()

    async def take_part(self, member: Membership, e: Experiment, stations: Stations) -> Agent:
        """Does the tasks of a seat until the run has ended."""
        place = Place(member.federation, member.seat, member.server_key, member.beat, member.largest)
        cupboard = Cupboard(self.disk, place, self.identity)
        link = NatsLink(member.urls, self.login(member))

        def renewed(credentials: str) -> None:
            now = replace(member, claims=credentials)
            now.save(self.disk)
            link.renew(self.login(now))

        renewal = Renewal(member.claims, renewed) if member.claims else None
        agent = self.agent = Agent(cupboard, link, stations, self.manner.policy, self._objection(e), renewal)
        await link.open()
        refused = asyncio.create_task(link.refused())
        working = asyncio.create_task(agent.run())
        try:
            await asyncio.wait([refused, working], return_when=asyncio.FIRST_COMPLETED)
            (working if working.done() else refused).result()
        finally:
            for task in (refused, working):
                task.cancel()
            await asyncio.gather(refused, working, return_exceptions=True)
            await link.close()
            self.disk.close()
        return agent
