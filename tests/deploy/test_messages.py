"""Messages: versions, unknown fields, sizes, and tasks that are named by what decides their outcome."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motley.deploy.identities import Identity, down_bytes, verify
from motley.deploy.messages import (
    LARGEST,
    VERSION,
    Blob,
    Down,
    Enrol,
    MessageError,
    Task,
    Up,
    check_version,
    decode,
    encode,
    from_wire,
    to_wire,
)

TASK = Task(
    run="run",
    client=1,
    round=2,
    name="2.5",
    start=Blob("a" * 64, 100),
    dials={"proximal": {"mu": 0.1}},
    epochs=1.0,
    floor=1.0,
    partial=False,
    lr=0.1,
    key="0123456789abcdef",
)


def test_unknown_fields_are_ignored() -> None:
    told = json.loads(encode(Up(VERSION, 3, doing=("x",))))
    up = decode(Up, json.dumps({**told, "mood": "fine", "more": [1, {"a": None}]}).encode())
    assert (up.client, up.doing) == (3, ("x",))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"v":"one"}', b"\xff\xfe", b"[" * 60_000])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        decode(Up, data)


def test_what_is_too_long_is_not_read() -> None:
    with pytest.raises(MessageError, match=f"more than {LARGEST}"):
        decode(Up, encode(Up(VERSION, 3, says="x" * LARGEST)))


def test_another_version_is_refused_with_a_sentence() -> None:
    check_version(VERSION)
    with pytest.raises(MessageError, match="install the same Motley at both ends"):
        check_version(VERSION + 1)


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(data: bytes) -> None:
    for kind in (Up, Down, Enrol):
        try:
            decode(kind, data)
        except MessageError:
            continue


CHANGES: dict[str, Any] = {
    "run": "other",
    "client": 2,
    "round": 3,
    "name": "2.6",
    "start": Blob("b" * 64, 100),
    "dials": {"proximal": {"mu": 0.2}},
    "epochs": 2.0,
    "floor": 0.5,
    "partial": True,
    "lr": 0.2,
    "key": "0123456789abcdee",
    "down": Blob("c" * 64, 5),
    "basis": "earlier",
    "quickest": 1.0,
    "keep": True,
    "phase": "tune",
}


@pytest.mark.parametrize("field", CHANGES)
def test_whatever_decides_the_outcome_decides_the_id(field: str) -> None:
    assert msgspec.structs.replace(TASK, **{field: CHANGES[field]}).id != TASK.id


def test_every_field_of_a_task_is_among_those() -> None:
    assert set(CHANGES) == set(TASK.__struct_fields__)


def test_where_bytes_are_to_be_had_does_not_decide_the_id() -> None:
    elsewhere = msgspec.structs.replace(TASK, start=Blob("a" * 64, 100, ("4", "s")))
    assert elsewhere.id == TASK.id
    assert decode(Task, encode(elsewhere)).id == TASK.id


def test_numbers_that_json_cannot_hold_survive() -> None:
    dials = {"part": {"a": float("inf"), "b": -float("inf"), "c": 1.5}}
    down = decode(Down, encode(Down(VERSION, "task", 1, task=msgspec.structs.replace(TASK, dials=to_wire(dials)))))
    assert down.task is not None
    assert from_wire(down.task.dials) == dials


def test_a_signature_holds_for_one_client_one_run_and_every_field() -> None:
    server, other = Identity.new(), Identity.new()
    down = Down(VERSION, "task", 1, TASK.id, TASK)
    signed = server.sign(down_bytes("run", 1, down))
    assert verify(server.public, down_bytes("run", 1, down), signed)
    assert not verify(other.public, down_bytes("run", 1, down), signed)
    assert not verify(server.public, down_bytes("run", 2, down), signed)
    assert not verify(server.public, down_bytes("else", 1, down), signed)
    for changed in ({"epoch": 2}, {"kind": "receipt"}, {"id": "x"}, {"why": "kept"}, {"asker": "2"}, {"digest": "d"}):
        assert not verify(server.public, down_bytes("run", 1, msgspec.structs.replace(down, **changed)), signed)
    assert not verify("no key", b"", "no signature")
