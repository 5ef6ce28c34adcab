"""The log of a run: checksums, a torn end, segments."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from motley.core.errors import InputError, StateError
from motley.deploy.disks import FolderDisk
from motley.deploy.event_log import Entry, EventLog
from motley.deploy.fault_world import MemoryDisk


def filled(disk: FolderDisk | MemoryDisk, n: int, segment_bytes: int = 1 << 20) -> EventLog:
    log = EventLog(disk, segment_bytes)
    for i in range(n):
        log.append(float(i), "arrive", f"task-{i}", "digest")
    log.sync()
    return log


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path)
    filled(disk, 5)
    again = EventLog(FolderDisk(tmp_path))
    assert again.seq == 5
    assert [entry.what[0] for entry in again.entries(after=3)] == ["task-3", "task-4"]
    assert next(iter(again.entries())) == Entry(1, 0.0, "arrive", ("task-0", "digest"))
    disk.close()


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_torn_end_is_cut_off_and_writing_goes_on(tmp_path: Path, cut: int) -> None:
    disk = FolderDisk(tmp_path)
    filled(disk, 4)
    disk.close()
    (segment,) = (tmp_path / "log").iterdir()
    segment.write_bytes(segment.read_bytes()[:-cut])
    again = EventLog(FolderDisk(tmp_path))
    assert again.seq == 3
    again.append(9.0, "tick")
    again.sync()
    again.disk.close()  # type: ignore[attr-defined]
    assert [entry.kind for entry in EventLog(FolderDisk(tmp_path)).entries()] == ["arrive"] * 3 + ["tick"]


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    line = Entry(1, 0.5, "here", (3,)).to_line()
    for position in (0, 5, len(line) - 3):
        damaged = bytearray(line)
        damaged[position] ^= 1
        assert Entry.from_line(bytes(damaged)) is None
    assert Entry.from_line(line) == Entry(1, 0.5, "here", (3,))


def test_segments_follow_each_other_and_damage_in_the_middle_is_refused(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path)
    log = filled(disk, 40, segment_bytes=300)
    names = disk.names("log/")
    assert len(names) > 3
    assert [entry.seq for entry in log.entries(after=17)] == list(range(18, 41))
    disk.close()
    second = tmp_path / names[1]
    second.write_bytes(second.read_bytes()[:-5])
    with pytest.raises(StateError, match="restore the folder from a copy"):
        EventLog(FolderDisk(tmp_path))


def test_damage_to_what_was_safe_is_refused_and_other_damage_is_cut_off(tmp_path: Path) -> None:
    """A line that was written after a sync tells that those before it were on the disk."""
    disk = FolderDisk(tmp_path)
    log = filled(disk, 20)
    log.append(21.0, "tick")
    disk.close()
    (segment,) = (tmp_path / "log").iterdir()
    whole = segment.read_bytes()
    for i in range(21):
        lines = whole.splitlines(keepends=True)
        lines[i] = lines[i].replace(b'"', b"'", 1)
        segment.write_bytes(b"".join(lines))
        if i < 20:
            with pytest.raises(StateError, match=f"the entry after {i} is damaged, though it was on the disk"):
                EventLog(FolderDisk(tmp_path))
            assert segment.read_bytes() == b"".join(lines)
        else:
            assert EventLog(FolderDisk(tmp_path)).seq == 20


def test_a_crash_keeps_what_was_synced() -> None:
    for seed in range(30):
        disk = MemoryDisk(random.Random(seed))
        log = filled(disk, 6)
        log.append(7.0, "arrive", "not synced", "digest")
        disk.crash()
        assert EventLog(disk).seq in (6, 7)
        assert [entry.seq for entry in EventLog(disk).entries()][:6] == list(range(1, 7))


def test_systems_without_what_it_needs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pwrite")
    with pytest.raises(InputError, match="use Linux, macOS or WSL"):
        FolderDisk(tmp_path / "deploy")
    assert not (tmp_path / "deploy").exists()


def test_files_are_nobody_elses_to_read(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path)
    disk.write("key", b"secret")
    disk.append("log/1", b"line")
    disk.put("parts/a", 0, b"piece")
    disk.close()
    for name in ("key", "log/1", "parts/a"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0, name
