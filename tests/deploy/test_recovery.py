"""What outlives accidents and credentials: damaged folders are refused, and credentials renewed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from motley.core.errors import StateError
from motley.deploy.agent_process import Membership
from motley.deploy.credentials import NatsKey, claims
from motley.deploy.disks import FolderDisk
from motley.deploy.rehearsal import simulated
from motley.deploy.renewal import Renewal, claims_of
from motley.deploy.server_process import ServerProcess, deploy_disk
from motley.deploy.wire import end
from tests.deploy.field import Field, tiny


def test_a_log_that_lost_its_end_does_not_fit_its_checkpoint(tmp_path: Path) -> None:
    field = Field(tiny(checkpoint_seconds=0.0), tmp_path)
    field.run()
    (segment,) = (deploy_disk(field.folder).root / "log").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    (field.folder / "summary.json").unlink()  # as if it had been interrupted
    segment.write_bytes(b"".join(lines[: len(lines) // 2]))
    with pytest.raises(StateError, match=r"its checkpoint was made after entry .* a part of the log is missing"):
        asyncio.run(asyncio.wait_for(ServerProcess(field.e, field.folder).run(), 20))


def test_work_goes_on_beyond_the_end_of_credentials(tmp_path: Path) -> None:
    """They last for three seconds, and the run for five at least."""
    begun = time.time()
    field = Field(tiny(rounds=25), tmp_path, credential_days=3 / 86400)
    field.server = ServerProcess(field.e, field.folder, listeners=[lambda record: time.sleep(0.2)])
    result = field.run()
    assert result.summary["model_sha256"] == simulated(field.e)
    for folder in tmp_path.iterdir():
        member = Membership.load(FolderDisk(folder)) if folder.name != "run" else None
        assert member is None or claims_of(member.claims)["iat"] > begun + 1


def test_credentials_are_renewed_in_time_and_only_by_better_ones() -> None:
    key, other = NatsKey.new("user"), NatsKey.new("user")
    now = time.time()

    def made(subject: NatsKey, issued: float, expires: float) -> str:
        return claims(other, subject.public, "3", {}, issued=issued, expires=expires)

    taken: list[str] = []
    renewal = Renewal(made(key, now - 100, now + 60), taken.append)
    assert not renewal.is_due
    renewal = Renewal(made(key, now - 100, now + 40), taken.append)
    assert renewal.is_due
    for worse in ("", "a.b.c", made(other, now, now + 500), made(key, now, now + 30)):
        renewal.take(worse)
    assert taken == []
    renewal.take(better := made(key, now, now + 500))
    assert taken == [better]
    assert not renewal.is_due


def test_whoever_waits_for_the_end_of_another_can_be_ended_meanwhile() -> None:
    """Otherwise an agent that is told to stop while it closes a line goes on as if nothing had been said."""
    reached: list[str] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)

    async def closing() -> None:
        other = asyncio.create_task(slow_to_end())
        await asyncio.sleep(0)  # it begins
        await end(other)
        reached.append("went on")

    async def main() -> None:
        task = asyncio.create_task(closing())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), 10))
    assert reached == []
