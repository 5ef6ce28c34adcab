"""Who may do what at the broker, tried by an independent client; invitations; eviction."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from pathlib import Path
from typing import Any

import nats
import pytest

from motley.core.errors import InputError, StateError
from motley.deploy.agent_process import AgentProcess, Manner, Membership
from motley.deploy.broker import Broker, free_port
from motley.deploy.certificates import Authority, client_context, write_secret
from motley.deploy.credentials import Account, NatsKey, b64
from motley.deploy.disks import FolderDisk
from motley.deploy.enrolment import Invitation
from motley.deploy.nats_link import Login, NatsLink, RefusedError
from motley.deploy.operating import Revoker, order_eviction
from motley.deploy.server_process import ServerProcess, Settings, invite, new_server
from motley.runtime.experiment import prepare
from tests.deploy.field import Field, settings, tiny

FEDERATION = "f00d"
F = f"mo1.{FEDERATION}"
TABLE = [  # who, what, subject, allowed
    ("3", "pub", f"{F}.up.3", True),
    ("3", "pub", f"{F}.up.4", False),
    ("3", "pub", f"{F}.get.s.3", True),
    ("3", "pub", f"{F}.get.4.3", True),
    ("3", "pub", f"{F}.get.s.4", False),
    ("3", "pub", f"{F}.down.3", False),
    ("3", "pub", f"{F}.down.4", False),
    ("3", "pub", f"{F}.all", False),
    ("3", "pub", f"{F}.in.4.1.0", False),
    ("3", "pub", f"{F}.fan.d.0", False),
    ("3", "pub", f"{F}.enrol.abc", False),
    ("3", "pub", "mo1.other.up.3", False),
    ("3", "pub", "$SYS.REQ.CLAIMS.UPDATE", False),
    ("3", "pub", "$JS.API.INFO", False),
    ("3", "sub", f"{F}.down.3", True),
    ("3", "sub", f"{F}.down.4", False),
    ("3", "sub", f"{F}.down.*", False),
    ("3", "sub", f"{F}.up.*", False),
    ("3", "sub", f"{F}.all", True),
    ("3", "sub", f"{F}.get.3.*", True),
    ("3", "sub", f"{F}.get.4.*", False),
    ("3", "sub", f"{F}.get.s.*", False),
    ("3", "sub", f"{F}.in.3.>", True),
    ("3", "sub", f"{F}.in.4.>", False),
    ("3", "sub", f"{F}.in.>", False),
    ("3", "sub", f"{F}.>", False),
    ("3", "sub", ">", False),
    ("3", "sub", "$SYS.>", False),
    ("guest", "pub", f"{F}.enrol.guest", True),
    ("guest", "pub", f"{F}.enrol.other", False),
    ("guest", "pub", f"{F}.up.3", False),
    ("guest", "sub", f"{F}.in.guest.>", True),
    ("guest", "sub", f"{F}.down.3", False),
    ("guest", "sub", f"{F}.>", False),
    ("server", "pub", f"{F}.down.3", True),
    ("server", "sub", f"{F}.up.*", True),
    ("server", "pub", "$SYS.REQ.CLAIMS.UPDATE", False),
    ("server", "sub", "mo1.other.>", False),
]


class Guarded:
    """A broker with TLS and accounts, and those who come to it."""

    def __init__(self, folder: Path) -> None:
        self.disk = FolderDisk(folder)
        self.account = Account.new(FEDERATION)
        self.authority = Authority.kept(folder / "tls", "test")
        certificate, key = self.authority.for_broker(["127.0.0.1"])
        write_secret(folder / "tls" / "broker.pem", certificate)
        write_secret(folder / "tls" / "broker.key", key)
        tls = (
            f'tls {{ cert_file: "{folder}/tls/broker.pem", key_file: "{folder}/tls/broker.key", min_version: "1.3" }}\n'
        )
        more = tls + self.account.configuration().replace("./accounts", str(folder / "accounts"))
        self.broker = Broker(folder / "broker", "127.0.0.1", free_port(), more)
        self.keys = {name: NatsKey.new("user") for name in ("3", "guest")}

    def who(self, name: str) -> tuple[NatsKey, str]:
        if name == "server":
            return self.account.server, self.account.server_claims()
        if name == "guest":
            return self.keys[name], self.account.guest_claims("guest", self.keys[name].public, 1.0)
        return self.keys[name], self.account.agent_claims(int(name), self.keys[name].public)

    def context(self) -> ssl.SSLContext:
        return client_context(self.authority.pem)

    def login(self, key: NatsKey, claims: str) -> Login:
        return Login({"jwt": claims}, lambda nonce: b64(key.sign(nonce)), self.context())


async def connect(guarded: Guarded, key: NatsKey, claims: str, errors: list[str]) -> Any:
    """By another implementation than Motley's own."""

    async def heard(error: Exception) -> None:
        errors.append(str(error))

    return await nats.connect(
        f"tls://127.0.0.1:{guarded.broker.port}",
        tls=guarded.context(),
        user_jwt_cb=claims.encode,
        signature_cb=lambda nonce: base64.b64encode(key.sign(nonce.encode())),
        error_cb=heard,
        allow_reconnect=False,
        connect_timeout=5,
    )


async def denied(line: Any, errors: list[str], what: str, subject: str) -> bool:
    errors.clear()
    if what == "pub":
        await line.publish(subject, b"x")
    else:
        await line.subscribe(subject)
    await line.flush(5)
    await asyncio.sleep(0.02)
    return any("permissions violation" in error.lower() for error in errors)


def test_who_may_say_and_hear_what(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path)
    guarded.broker.start()

    async def look() -> list[tuple[str, str, str, bool]]:
        found = []
        for name in ("3", "guest", "server"):
            errors: list[str] = []
            line = await connect(guarded, *guarded.who(name), errors)
            for who, what, subject, _ in [row for row in TABLE if row[0] == name]:
                found.append((who, what, subject, not await denied(line, errors, what, subject)))
            await line.close()
        return found

    try:
        assert sorted(asyncio.run(look())) == sorted(TABLE)
    finally:
        guarded.broker.stop()


def test_strangers_are_not_let_in_and_who_is_thrown_out_leaves_at_once(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path)
    guarded.broker.start()
    key, claims = guarded.who("3")
    stranger = NatsKey.new("user")
    foreign = Account.new(FEDERATION).agent_claims(3, key.public)
    expired = guarded.account._scoped(guarded.account.agents, key.public, "3", -10.0)

    async def refused(who: NatsKey, said: str) -> None:
        link = NatsLink([guarded.broker.url], guarded.login(who, said))
        with pytest.raises((RefusedError, InputError)):
            await link.open(3.0)
        await link.close()

    async def look() -> None:
        await refused(stranger, claims)  # another's claims
        await refused(key, foreign)  # another operator's
        await refused(key, expired)
        link = NatsLink([guarded.broker.url], guarded.login(key, claims))
        await link.open(5.0)
        revoker = Revoker(guarded.account, guarded.disk, guarded.broker.url, guarded.login)
        time.sleep(1.1)  # claims count in whole seconds
        revoker(NatsIdentity(key).hex)
        await revoker.close()
        assert revoker.trouble == ""
        with pytest.raises(RefusedError):
            async with asyncio.timeout(5.0):
                await link.refused()
        await link.close()
        await refused(key, claims)

    try:
        asyncio.run(look())
    finally:
        guarded.broker.stop()


class NatsIdentity:
    """The public half of a key as the roster holds it."""

    def __init__(self, key: NatsKey) -> None:
        self.hex = key._key.public_key().public_bytes_raw().hex()


def test_plain_is_for_this_machine_alone() -> None:
    with pytest.raises(InputError, match="this machine alone"):
        Settings("f", "0.0.0.0", 4222, ("hub.example.org",), plain=True)
    with pytest.raises(InputError, match=r"not for 10\.0\.0\.9"):
        Settings("f", "127.0.0.1", 4222, ("127.0.0.1",), plain=True, broker="nats://10.0.0.9:4222")


@pytest.mark.parametrize("line", ["", "motley://x", "http://a/b#c", "motley://a:1/f#!!!!"])
def test_what_is_no_invitation_is_refused_with_a_sentence(line: str) -> None:
    with pytest.raises(InputError, match="copy the whole line"):
        Invitation.from_line(line)


@pytest.mark.parametrize("mtls", [False, True])
def test_an_invitation_is_good_once_and_an_evicted_seat_is_out(mtls: bool, tmp_path: Path) -> None:
    recipe = tiny(clients=3, cohort=3, rounds=400, protocol="late", deadline=5.0, evaluate_every=400)
    field = Field(recipe, tmp_path, mtls=mtls, wait_for=2)

    async def meanwhile(field: Field) -> None:
        disk = FolderDisk(field.folder / "deploy")
        while field.server.serving is None or len(field.server.serving.roster.seats) < 3:
            await asyncio.sleep(0.05)
        thief = AgentProcess(tmp_path / "thief", Manner(name="thief", rehearsal=True))
        with pytest.raises(StateError, match="All 3 seats"):
            await thief.join(invite(field.folder, -1).to_line())
        order_eviction(disk, 1)
        while 1 not in field.server.serving.roster.evicted:
            await asyncio.sleep(0.05)
        field.server.serving.book.core.run.stop("seen enough")  # type: ignore[union-attr]

    with pytest.raises(RefusedError, match="does not let this process in"):
        field.run(meanwhile)
    told = [json.loads(line) for line in (field.folder / "deploy" / "audit.jsonl").read_text().splitlines()]
    assert {"epoch", "seat", "start", "evict"} <= {one["kind"] for one in told}
    assert all((tmp_path / f"agent-{seat}" / "tls" / "client.pem").exists() is mtls for seat in range(3))
    member = Membership.load(FolderDisk(tmp_path / "agent-1"))
    assert member is not None
    assert "seed" not in json.dumps(member.claims)


def test_two_keys_cannot_use_one_invitation(tmp_path: Path) -> None:
    recipe = tiny(clients=2, cohort=2, rounds=2)
    folder = tmp_path / "run"
    new_server(recipe, folder, settings(wait_for=2))
    server = ServerProcess(prepare(recipe), folder)
    line = invite(folder, 0, "first").to_line()

    async def look() -> None:
        serving = asyncio.create_task(server.run())
        try:
            await asyncio.sleep(0.5)
            first = AgentProcess(tmp_path / "first", Manner(rehearsal=True))
            member, _ = await first.join(line)
            assert member.seat == 0
            second = AgentProcess(tmp_path / "second", Manner(rehearsal=True))
            with pytest.raises(StateError, match="has been used"):
                await second.join(line)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(asyncio.wait_for(look(), 60.0))
