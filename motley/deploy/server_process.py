"""The process of a deployed server: its folder, the broker, the line to it, and the run."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from msgspec.structs import replace

from motley.core.errors import InputError, StateError
from motley.core.files import held
from motley.deploy.agent_data import layers_of
from motley.deploy.blob_store import BlobStore
from motley.deploy.broker import Broker, free_port
from motley.deploy.certificates import (
    Authority,
    client_context,
    client_files,
    client_key,
    key_pem,
    new_key,
    request,
    write_secret,
)
from motley.deploy.core import Core, Plain
from motley.deploy.credentials import Account, NatsKey, b64, user_key
from motley.deploy.diary import Diary
from motley.deploy.disks import FolderDisk
from motley.deploy.enrolment import Invitation, Invitations, Registrar
from motley.deploy.field_carrier import Attendance
from motley.deploy.identities import Identity
from motley.deploy.legs import Course, Saved
from motley.deploy.logged_run import LoggedRun
from motley.deploy.messages import VERSION, Enrol, Welcome
from motley.deploy.nats_link import Login, NatsLink
from motley.deploy.operating import Operating, Revoker
from motley.deploy.phased_run import Means, PhasedRun, settled_recipe
from motley.deploy.roster import Roster
from motley.deploy.serving import Serving, Terms
from motley.deploy.status_page import StatusPage, serve_metrics
from motley.deploy.wire import Subjects
from motley.runtime.experiment import Experiment
from motley.runtime.folders import begin, open_run
from motley.runtime.launch import Listening, Result
from motley.runtime.recipe import Recipe

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Settings:
    """How a run is served; kept in its folder, so that it can be resumed and invited to."""

    federation: str
    host: str  # where the broker listens
    port: int
    names: tuple[str, ...]  # under which agents reach it
    broker: str = ""  # the address of a broker that runs elsewhere
    plain: bool = False  # neither TLS nor credentials: on loopback only
    mtls: bool = False
    beat: float = 5.0
    lease: float = 60.0
    wait_for: int = 0  # seats that must be taken before the run starts; 0: all
    largest: int = 1 << 32
    audit: bool = False
    metrics: int = 0  # a port on this machine; 0: none
    credential_days: float = 30.0  # after which an agent's credentials end; they are renewed before
    rehearsal: bool = False  # agents play the devices of the recipe's fleet

    def __post_init__(self) -> None:
        hosts = [self.host, *([urlparse(self.broker).hostname or self.broker] if self.broker else [])]
        for host in hosts:
            if self.plain and host not in LOOPBACK:
                raise InputError(f"--plain is for this machine alone, not for {host}; leave it out.")

    @property
    def urls(self) -> tuple[str, ...]:
        if self.broker:
            return (self.broker,)
        return tuple(f"nats://{name}:{self.port}" for name in self.names)

    def save(self, disk: FolderDisk) -> None:
        disk.write("settings.json", json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def load(cls, disk: FolderDisk) -> Settings:
        found = disk.read("settings.json")
        if found is None:
            raise StateError(f"{disk.root.parent} is not the folder of a deployed run; 'motley serve' makes one.")
        content = json.loads(found)
        return cls(**{**content, "names": tuple(content["names"])})


def deploy_disk(folder: Path) -> FolderDisk:
    return FolderDisk(folder / "deploy")


def is_deployed(folder: Path) -> bool:
    return (folder / "deploy" / "settings.json").is_file()


def opened(folder: Path) -> Recipe:
    """The recipe of a deployed run's folder; StateError where it is none."""
    if not is_deployed(folder):
        raise StateError(f"{folder} is not the folder of a deployed run; 'motley serve' makes one.")
    return open_run(folder)


def new_server(recipe: Recipe, folder: Path, settings: Settings) -> None:
    """Writes what the folder of a deployed run holds from the start."""
    if is_deployed(folder):
        raise StateError(f"{folder} holds a deployed run already; go on with 'motley resume {folder}'.")
    begin(recipe, folder)
    disk = deploy_disk(folder)
    Identity.kept(disk)
    if not settings.plain:
        Account.new(settings.federation).save(disk)
        authority = Authority.kept(disk.root / "tls", f"motley {settings.federation}")
        certificate, key = authority.for_broker([*settings.names, *LOOPBACK])
        (disk.root / "tls" / "broker.pem").write_bytes(certificate)
        write_secret(disk.root / "tls" / "broker.key", key)
        asked = request(client_key(disk.root / "tls"), "server")
        (disk.root / "tls" / "client.pem").write_bytes(authority.for_agent(asked, "server", days=3650.0))
    settings.save(disk)


def new_federation() -> str:
    return secrets.token_hex(6)


def invite(folder: Path, seat: int = -1, name: str = "", hours: float = 48.0) -> Invitation:
    """An invitation to a run; the server need not be running."""
    seats = opened(folder).clients or 0
    disk = deploy_disk(folder)
    settings = Settings.load(disk)
    if not -1 <= seat < seats:
        raise InputError(f"There is no seat {seat}; this federation has the seats 0 to {seats - 1}.")
    made, expires = Invitations(disk).add(seat, name, hours)
    bare = Invitation(made, settings.federation, settings.urls, Identity.kept(disk).public, seat, name, expires)
    if settings.plain:
        return bare
    account, key = Account.load(disk), NatsKey.new("user")
    secured = replace(
        bare,
        ca=(disk.root / "tls" / "ca.pem").read_text(),
        claims=account.guest_claims(made, key.public, hours),
        seed=key.raw.hex(),
    )
    if not settings.mtls:
        return secured
    guest = new_key()
    signed = Authority.kept(disk.root / "tls", "").for_agent(request(guest, "guest"), "guest", hours / 24.0)
    return replace(secured, certificate=signed.decode(), key=key_pem(guest).decode())


def login_of(key: NatsKey, claims: str, ca: str, name: str, certificate: tuple[Path, Path] | None = None) -> Login:
    """How whoever has this key and these claims comes in."""
    context = client_context(ca.encode(), *(certificate or (None, None)))
    return Login({"jwt": claims}, lambda nonce: b64(key.sign(nonce)), context, name)


class ServerProcess:
    """Serves the run of a folder, from the start or from where it stopped."""

    def __init__(self, experiment: Experiment, folder: Path, listeners: Listening = ()) -> None:
        self.e, self.folder, self.listeners = experiment, folder, listeners
        self.disk = deploy_disk(folder)
        self.settings = Settings.load(self.disk)
        self.identity = Identity.kept(self.disk)
        self.broker: Broker | None = None
        self.serving: Serving | None = None
        self._account = None if self.settings.plain else Account.load(self.disk)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="run")

    # ------------------------------------------------------------------ life
    async def run(self, told: Callable[[ServerProcess], None] | None = None) -> Result:
        """Serves to the end; ``told`` is called once agents can come."""
        with held(self.disk.root):
            self._start_broker()
            link = NatsLink([self._own_url], self._login())
            watch = None if self.broker is None else asyncio.create_task(self.broker.watch())
            try:
                await link.open(15.0)
                return await self._serve(link, told)
            finally:
                if watch is not None:
                    watch.cancel()
                try:
                    await link.close()
                finally:
                    if self.broker is not None:
                        self.broker.stop()
                    await self._let_go()

    async def _let_go(self) -> None:
        """Closes the folder once nothing writes to it any more: a step that is under way ends first."""
        try:
            await asyncio.to_thread(partial(self._thread.shutdown, wait=True, cancel_futures=True))
        finally:
            self.disk.close()

    async def _serve(self, link: NatsLink, told: Callable[[ServerProcess], None] | None) -> Result:
        serving = self.serving = self._serving(link)
        revoker = None
        if self._account is not None:
            revoker = Revoker(self._account, self.disk, self._own_url, self._system_login)
        revoke = revoker or (lambda public: None)
        subjects = Subjects(self.settings.federation)
        invitations = Invitations(self.disk)
        desk = Registrar(link, subjects, invitations, lambda: serving.roster, serving.tidings.happened, self._welcome)
        desk.replaced = revoke
        serving.after_step.append(desk.answer)
        operating = Operating(self.disk, serving, revoke)
        page = StatusPage(self.disk, serving, self.broker, self._about())
        page.trouble = lambda: "" if revoker is None else revoker.trouble
        if told is not None:
            told(self)
        beside: list[asyncio.Task[None]] = []
        serving.begun = lambda: beside.extend(map(asyncio.ensure_future, (operating.watch(), page.watch())))
        pages = await serve_metrics(self.settings.metrics, self.disk) if self.settings.metrics else None
        try:
            result = await serving.run()
            await page.write()
            return result
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            if pages is not None:
                pages.close()
            if revoker is not None:
                await revoker.close()

    def _about(self) -> dict[str, Any]:
        recipe = self.e.recipe
        return {"name": recipe.name, "method": recipe.method, "rounds": recipe.rounds, "pid": os.getpid()}

    def _serving(self, link: NatsLink) -> Serving:
        s = self.settings
        seats = self.e.data.n_clients
        attendance = Attendance(Roster(seats), self.e.fleet if s.rehearsal else None)

        book = LoggedRun(self._course(), attendance, self.disk, s.wait_for or seats, s.audit)
        book.noted = Diary(self.disk).note
        terms = Terms(s.beat, s.lease, s.largest)
        serving = Serving(book, s.federation, link, self.disk, self.identity, terms, self._in_thread)
        account = self._account
        if account is not None:
            keys = attendance.roster.seats
            serving.renewed = lambda seat: self._credentials(account, seat, user_key(keys[seat].public_key))
        return serving

    def _credentials(self, account: Account, seat: int, broker_key: str) -> str:
        return account.agent_claims(seat, broker_key, self.settings.credential_days)

    def _course(self) -> Course:
        run_id, disk = self.settings.federation, self.disk
        if self.e.recipe.phases:
            return PhasedRun(self.e.recipe, Means(run_id, disk, lambda: BlobStore(disk), self.folder, self.listeners))

        def new_core(attendance: Attendance, saved: Saved) -> Core:
            more: dict[str, Any] = {"folder": self.folder, "listeners": self.listeners, "saved": saved}
            return Core(self.e, run_id, attendance, disk, BlobStore(disk), **more)

        return Plain(new_core)

    async def _in_thread(self, function: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *given)

    # ------------------------------------------------------------------ the broker
    @property
    def _own_url(self) -> str:
        return self.settings.broker or f"nats://127.0.0.1:{self.settings.port}"

    def _start_broker(self) -> None:
        s = self.settings
        if s.broker:
            return
        self.broker = Broker(self.disk.root / "broker", s.host, s.port, self._secured(), free_port())
        self.broker.start()

    def _secured(self) -> str:
        """What the broker's configuration says of certificates and accounts."""
        if self._account is None:
            return ""
        tls = self.disk.root / "tls"
        text = (
            f'tls {{ cert_file: "{tls / "broker.pem"}", key_file: "{tls / "broker.key"}", ca_file: "{tls / "ca.pem"}"'
            f', verify: {str(self.settings.mtls).lower()}, min_version: "1.3", timeout: 5 }}\n'
        )
        accounts = self.disk.root / "broker" / "accounts"
        made = text + self._account.configuration().replace("./accounts", str(accounts))
        self._account.save(self.disk)
        return made

    def _system_login(self, key: NatsKey, claims: str) -> Login:
        tls = self.disk.root / "tls"
        return login_of(key, claims, (tls / "ca.pem").read_text(), "system", client_files(tls))

    def _login(self) -> Login:
        if self._account is None:
            return Login(name="server")
        tls = self.disk.root / "tls"
        ca = (tls / "ca.pem").read_text()
        return login_of(self._account.server, self._account.server_claims(), ca, "server", client_files(tls))

    # ------------------------------------------------------------------ newcomers
    def _welcome(self, seat: int, enrol: Enrol) -> Welcome:
        s = self.settings
        made = Welcome(
            VERSION,
            seat=seat,
            recipe=settled_recipe(self.e.recipe).to_toml(),
            identity=s.federation,
            server_key=self.identity.public,
            beat=s.beat,
            lease=s.lease,
            largest=s.largest,
            layers=layers_of(self.e.net),
            classes=self.e.dataset.n_classes,
        )
        if self._account is not None and enrol.n:
            made.credentials = self._credentials(self._account, seat, enrol.broker_key)
            if s.mtls and enrol.csr:
                authority = Authority.kept(self.disk.root / "tls", "")
                made.certificate = authority.for_agent(enrol.csr, str(seat)).decode()
        return made
