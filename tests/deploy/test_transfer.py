"""Transfers: windowed, asked for again, resumed, checked, limited."""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import Any

import pytest

from motley.deploy import transfer
from motley.deploy.fault_world import MemoryDisk, MemoryLink, Network
from motley.deploy.transfer import CHUNK, GoneError, Holder, NotYoursError, Partial, Request, fetch
from motley.deploy.wire import Subjects
from motley.runtime.clock import SteppedLoop

SUBJECTS = Subjects("f")
CONTENT = random.Random(0).randbytes(5 * CHUNK + 1234)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Two:
    """A holder and an asker on one network."""

    def __init__(self, drop: float = 0.0, content: bytes = CONTENT, askers: tuple[str, ...] = ("1",)) -> None:
        self.network = Network(random.Random(1), drop)
        self.disks = {name: MemoryDisk(random.Random(2)) for name in ("s", *askers)}
        self.disks["s"].write("blob", content)
        self.links = {name: MemoryLink(self.network, name) for name in self.disks}
        Holder(self.links["s"], SUBJECTS, "s", self.disks["s"], self.find, self.allowed, fans=True)

    def find(self, digest: str) -> str | None:
        return "blob" if digest == DIGEST else None

    def allowed(self, asker: str, digest: str) -> bool:
        return asker != "9"

    async def fetch(self, who: str = "1", digest: str = DIGEST, size: int = len(CONTENT), limit: int = 1 << 30) -> None:
        link, disk = self.links[who], self.disks[who]
        await fetch(link, SUBJECTS, who, ["s"], digest, size, disk=disk, name="got", limit=limit, fans=True)


def run(main: Any) -> Any:
    return SteppedLoop().run(main)  # type: ignore[abstract]


@pytest.mark.parametrize("drop", [0.0, 0.1, 0.3])
def test_all_of_it_comes_however_much_is_lost(drop: float) -> None:
    two = Two(drop)
    run(two.fetch())
    assert two.disks["1"].read("got") == CONTENT
    assert two.disks["1"].names("parts/") == []


def test_what_came_before_a_restart_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "HAVE_EVERY", 1)
    two = Two()
    before = Partial(two.disks["1"], DIGEST, len(CONTENT))
    for offset in (0, 2 * CHUNK):
        before.put(offset, CONTENT[offset : offset + CHUNK])
    asked: list[int] = []
    two.network.watch = lambda subject, data: asked.append(int(data.split()[1])) if ".get." in subject else None
    run(two.fetch())
    assert two.disks["1"].read("got") == CONTENT
    assert sorted(set(asked)) == [CHUNK, 3 * CHUNK, 4 * CHUNK, 5 * CHUNK]


def test_what_is_too_large_is_not_asked_for() -> None:
    two = Two()
    with pytest.raises(GoneError, match="more than the 1000 that may come"):
        run(two.fetch(limit=1000))
    assert two.network.counts["sent"] == 0


def test_what_is_not_what_its_digest_says_is_thrown_away() -> None:
    two = Two(content=CONTENT[:-1] + b"x")
    with pytest.raises(GoneError, match="not what its digest says"):
        run(two.fetch())
    assert two.disks["1"].files == {}


def test_who_may_not_have_it_and_what_is_not_there_is_refused() -> None:
    two = Two(askers=("1", "9"))
    with pytest.raises(NotYoursError):
        run(two.fetch("9"))
    with pytest.raises(NotYoursError):
        run(two.fetch(digest="0" * 64))


def test_a_holder_that_is_silent_is_gone() -> None:
    two = Two()
    two.network.cut.add("s")
    with pytest.raises(GoneError, match="does not answer"):
        run(two.fetch())


def test_a_request_that_would_be_answered_to_somebody_else_is_none() -> None:
    two = Two(askers=("1", "2"))
    heard: list[bytes] = []

    async def reflect() -> None:

        two.links["2"].subscribe(SUBJECTS.inbox("2", ">"), lambda message: heard.append(message.data))
        request = Request(DIGEST, 0, 10).to_bytes()
        two.links["1"].publish(SUBJECTS.get("s", "1"), request, SUBJECTS.inbox("2", "1.0"))
        two.links["1"].publish(SUBJECTS.get("s", "1"), request, SUBJECTS.down("2"))
        await asyncio.sleep(5.0)

    run(reflect())
    assert heard == []


@pytest.mark.parametrize(
    "data", [b"", b"a b c", b"d -1 5", b"d 0 0", b"d 0 99999999", b"../x 0 5", b"\xff 0 5", b"d 0"]
)
def test_requests_that_make_no_sense_are_not_answered(data: bytes) -> None:
    assert Request.from_bytes(data) is None


def test_many_askers_of_the_same_are_served_together() -> None:
    askers = tuple(str(i) for i in range(1, 9))
    two = Two(askers=askers)

    async def all_of_them() -> None:

        await asyncio.gather(*(two.fetch(who) for who in askers))

    run(all_of_them())
    assert all(two.disks[who].read("got") == CONTENT for who in askers)
