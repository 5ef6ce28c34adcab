"""What the broker knows of who may do what: keys and signed claims of NATS's operator mode.

An account has two signing keys with a scope each: agents may speak and listen only on subjects with their own seat's
name, and whoever was invited may only enrol. Claims for a new agent are made without the broker, which takes them
because the account has signed them; to take an agent's away, the account's claims are sent to the broker anew.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from motley.core.errors import StateError
from motley.deploy.disks import Disk

_PREFIX = {"operator": 14 << 3, "account": 0, "user": 20 << 3}
_SEED = 18 << 3
_UNLIMITED = {"subs": -1, "data": -1, "payload": -1}
_ACCOUNT_LIMITS = {
    **_UNLIMITED,
    "conn": -1,
    "leaf": -1,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "mem_storage": 0,
    "disk_storage": 0,
    "streams": 0,
    "consumer": 0,
}
DAY = 86_400.0


class NatsKey:
    """An Ed25519 key pair as NATS writes it."""

    def __init__(self, kind: str, raw: bytes) -> None:
        self.kind, self.raw = kind, raw
        self._key = Ed25519PrivateKey.from_private_bytes(raw)
        self.public = _encoded(bytes([_PREFIX[kind]]) + self._key.public_key().public_bytes_raw())

    @classmethod
    def new(cls, kind: str) -> NatsKey:
        return cls(kind, Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def seed(self) -> str:
        prefix = _PREFIX[self.kind]
        return _encoded(bytes([_SEED | prefix >> 5, (prefix & 31) << 3]) + self.raw)

    def sign(self, what: bytes) -> bytes:
        return self._key.sign(what)


def _encoded(data: bytes) -> str:
    """Base 32 with a checksum."""
    check = 0
    for byte in data:
        check ^= byte << 8
        for _ in range(8):
            check = (check << 1 ^ 0x1021 if check & 0x8000 else check << 1) & 0xFFFF
    return base64.b32encode(data + check.to_bytes(2, "little")).decode().rstrip("=")


def user_key(public: str) -> str:
    """An Ed25519 public key in hexadecimal, as NATS writes that of a user."""
    return _encoded(bytes([_PREFIX["user"]]) + bytes.fromhex(public))


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def claims(signer: NatsKey, subject: str, name: str, nats: dict[str, Any], *, issued: float, expires: float = 0) -> str:
    """Signed claims (a JWT of NATS's kind) about whoever has the key ``subject``."""
    body: dict[str, Any] = {"iat": int(issued), "iss": signer.public, "name": name, "sub": subject}
    body["nats"] = {**nats, "version": 2}
    if expires:
        body["exp"] = int(expires)
    digest = hashlib.sha256(_compact(body)).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{b64(_compact({'typ': 'JWT', 'alg': 'ed25519-nkey'}))}.{b64(_compact(body))}"
    return f"{text}.{b64(signer.sign(text.encode()))}"


def _compact(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


@dataclass
class Account:
    """The keys of a federation, and whose claims were taken away."""

    federation: str
    operator: NatsKey
    account: NatsKey
    system: NatsKey
    agents: NatsKey  # signs agents' claims
    guests: NatsKey  # signs invitations' claims
    server: NatsKey
    revoked: dict[str, int] = field(default_factory=dict)  # public key -> claims made up to then are void
    issued: int = 0  # of the account's claims: whole seconds, and always later than before

    @classmethod
    def new(cls, federation: str) -> Account:
        keys = {name: NatsKey.new(kind) for name, kind in _KEYS.items()}
        return cls(federation, **keys, revoked={}, issued=0)

    # ------------------------------------------------------------------ on disk
    def save(self, disk: Disk, name: str = "secrets/account") -> None:
        keys = {key: getattr(self, key).raw.hex() for key in _KEYS}
        content = {"federation": self.federation, "keys": keys, "revoked": self.revoked, "issued": self.issued}
        disk.write(name, json.dumps(content).encode())

    @classmethod
    def load(cls, disk: Disk, name: str = "secrets/account") -> Account:
        found = disk.read(name)
        if found is None:
            raise StateError("This folder has no keys of a federation; it was not made by 'motley serve'.")
        content = json.loads(found)
        keys = {key: NatsKey(_KEYS[key], bytes.fromhex(content["keys"][key])) for key in _KEYS}
        return cls(content["federation"], **keys, revoked=content["revoked"], issued=content["issued"])

    # ------------------------------------------------------------------ what the broker is told
    def account_claims(self) -> str:
        """Of the federation's account; each time with a later date, so that the newest is known."""
        self.issued = max(self.issued + 1, int(time.time()))
        nats: dict[str, Any] = {
            "type": "account",
            "limits": _ACCOUNT_LIMITS,
            "default_permissions": {"pub": {}, "sub": {}},
            "signing_keys": [
                {"kind": "user_scope", "key": self.agents.public, "role": "agent", "template": self._agent_scope()},
                {"kind": "user_scope", "key": self.guests.public, "role": "guest", "template": self._guest_scope()},
            ],
        }
        if self.revoked:
            nats["revocations"] = self.revoked
        return claims(self.operator, self.account.public, self.federation, nats, issued=self.issued)

    def _agent_scope(self) -> dict[str, Any]:
        f, me = f"mo1.{self.federation}", "{{name()}}"
        return {
            "pub": {"allow": [f"{f}.up.{me}", f"{f}.get.*.{me}"]},
            "sub": {"allow": [f"{f}.down.{me}", f"{f}.all", f"{f}.get.{me}.*", f"{f}.in.{me}.>", f"{f}.fan.>"]},
            "resp": {"max": 1, "ttl": int(60e9)},
            **_UNLIMITED,
            "subs": 64,
        }

    def _guest_scope(self) -> dict[str, Any]:
        f, me = f"mo1.{self.federation}", "{{name()}}"
        return {
            "pub": {"allow": [f"{f}.enrol.{me}"]},
            "sub": {"allow": [f"{f}.in.{me}.>"]},
            **_UNLIMITED,
            "subs": 4,
        }

    def configuration(self) -> str:
        """For the broker's file: whom it trusts, and the account as it is at the start."""
        now = time.time()
        operator = claims(self.operator, self.operator.public, "motley", {"type": "operator"}, issued=now)
        nats = {"type": "account", "limits": _ACCOUNT_LIMITS, "default_permissions": {"pub": {}, "sub": {}}}
        system = claims(self.operator, self.system.public, "system", nats, issued=now)
        return (
            f"operator: {operator}\n"
            f"system_account: {self.system.public}\n"
            'resolver: { type: full, dir: "./accounts", allow_delete: false, interval: "2m" }\n'
            f"resolver_preload: {{ {self.account.public}: {self.account_claims()}, {self.system.public}: {system} }}\n"
        )

    # ------------------------------------------------------------------ who may come
    def server_claims(self) -> str:
        """Of the server itself, which may say and hear everything in its federation."""
        f = f"mo1.{self.federation}.>"
        nats = {"type": "user", "pub": {"allow": [f]}, "sub": {"allow": [f]}, **_UNLIMITED}
        return claims(self.account, self.server.public, "s", nats, issued=time.time())

    def system_claims(self, key: NatsKey) -> str:
        """Of a process that sends the account's claims to the broker."""
        nats = {"type": "user", "pub": {}, "sub": {}, **_UNLIMITED}
        return claims(self.system, key.public, "system", nats, issued=time.time())

    def agent_claims(self, seat: int, public: str, days: float = 30.0) -> str:
        return self._scoped(self.agents, public, str(seat), days * DAY)

    def guest_claims(self, invitation: str, public: str, hours: float) -> str:
        return self._scoped(self.guests, public, invitation, hours * 3600.0)

    def _scoped(self, signer: NatsKey, public: str, name: str, seconds: float) -> str:
        now = time.time()
        nats = {"type": "user", "issuer_account": self.account.public}
        return claims(signer, public, name, nats, issued=now, expires=now + seconds)

    def revoke(self, public: str) -> None:
        """Whatever was signed for this key so far is void."""
        self.revoked[public] = max(self.issued + 1, int(time.time()))


_KEYS = {
    "operator": "operator",
    "account": "account",
    "system": "account",
    "agents": "account",
    "guests": "account",
    "server": "user",
}
