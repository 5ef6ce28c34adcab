"""Who says something: Ed25519 keys of server and agents, and signatures over what they tell."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from motley.deploy.disks import Disk
from motley.deploy.messages import Call, Down, Offer, encode


class Identity:
    """A key pair; the private half never leaves the machine on which it was made."""

    def __init__(self, seed: bytes) -> None:
        self.seed = seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._key.public_key().public_bytes_raw().hex()

    @classmethod
    def new(cls) -> Identity:
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def kept(cls, disk: Disk, name: str = "key") -> Identity:
        """The identity in a file; a new one is made and written where there is none."""
        found = disk.read(name)
        if found is None:
            made = cls.new()
            disk.write(name, made.seed.hex().encode())
            return made
        return cls(bytes.fromhex(found.decode().strip()))

    def sign(self, what: bytes) -> str:
        return self._key.sign(what).hex()


def verify(public: str, what: bytes, signature: str) -> bool:
    """Whether the owner of a public key has signed this."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(signature), what)
    except (InvalidSignature, ValueError):
        return False
    return True


# ------------------------------------------------------------------ what is signed
def offer_bytes(run: str, client: int, offer: Offer) -> bytes:
    return f"offer {run} {client} {offer.task} {offer.digest} {offer.size}".encode()


def down_bytes(run: str, client: int, down: Down) -> bytes:
    said = (down.id, down.task, down.why, down.asker, down.digest, down.credentials)
    bare = Down(down.v, down.kind, down.epoch, *said)
    return f"down {run} {client} ".encode() + encode(bare)


def call_bytes(run: str, call: Call) -> bytes:
    return f"call {run} ".encode() + encode(Call(call.v, call.epoch, call.ended, call.why))
