"""What parts keep on clients: bounded in memory, the rest on disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from motley.core import codec
from motley.core.errors import StateError
from motley.core.keys import Key
from motley.methods import make_method
from motley.runtime.client_store import ClientStore, State
from motley.runtime.launch import Run
from motley.runtime.virtual_carrier import VirtualCarrier
from tests import tiny

STATE = 400  # bytes of one state


def state(value: float) -> State:
    return {"c": torch.full((90,), float(value)), "pair": (torch.full((10,), -float(value)), None)}


def same(a: State | None, value: float) -> bool:
    return (
        a is not None and torch.equal(a["c"], state(value)["c"]) and torch.equal(a["pair"][0], state(value)["pair"][0])
    )


def test_unknown_clients_have_none(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    assert store.get(3) is None
    store.put(3, {})
    assert store.get(3) is None
    assert len(store) == 0


def test_memory_stays_below_the_limit_and_nothing_is_forgotten(tmp_path: Path) -> None:
    """A random sequence of reads and writes gives what a dictionary gives."""
    store, model = ClientStore(tmp_path, limit=5 * STATE), {}
    chance = Key.root(0).fold("store").generator()
    for number in range(600):
        client = int(chance.integers(0, 40))
        if chance.random() < 0.5:
            store.put(client, state(number))
            model[client] = number
        else:
            found = store.get(client)
            assert same(found, model[client]) if client in model else found is None
        assert store.memory_bytes <= 5 * STATE
        assert store.memory_bytes == STATE * len(store.in_memory)
        if number % 97 == 96:
            store.restore(store.checkpoint())
            store.drop_unused()
    assert len(store) == len(model)
    assert all(same(store.get(client), value) for client, value in model.items())


def test_a_checkpoint_is_untouched_by_what_comes_after_it(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, limit=2 * STATE)
    for client in range(8):
        store.put(client, state(client))
    index = store.checkpoint()
    store.drop_unused()
    for client in range(8):  # spills again, and again
        store.put(client, state(100 + client))
    again = ClientStore(tmp_path, limit=2 * STATE)
    again.restore(index)
    assert all(same(again.get(client), client) for client in range(8))


def test_many_segments_are_gathered_without_breaking_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the limit at a time, which is two states; what was gathered is not written again."""
    store = ClientStore(tmp_path, limit=3 * STATE)
    for client in range(200):
        store.put(client, state(client))
    assert len(list(tmp_path.iterdir())) > 64
    read, largest = codec.read, 0

    def watched(path: Path, *rest: Any, **options: Any) -> Any:
        nonlocal largest
        found = read(path, *rest, **options)
        largest = max(largest, len(store.in_memory))
        return found

    monkeypatch.setattr(codec, "read", watched)
    index = store.checkpoint()
    store.drop_unused()
    assert 0 < largest <= 6
    assert Counter(Counter(index["where"].values()).values()) == {2: 100}
    assert {path.name for path in tmp_path.iterdir()} == set(index["segments"])
    assert store.checkpoint() == index
    assert all(same(store.get(client), client) for client in range(200))


def test_gathering_makes_few_files_of_many(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, limit=1000 * STATE)
    for client in range(70):
        store.put(client, state(client))
        store.checkpoint()
    assert len(store.checkpoint()["segments"]) < 10
    store.drop_unused()
    assert len(list(tmp_path.iterdir())) < 10
    assert all(same(store.get(client), client) for client in range(70))


def test_a_row_of_a_matrix_does_not_keep_the_matrix(tmp_path: Path) -> None:
    """Batched training hands out rows of [K, P] matrices."""
    store = ClientStore(tmp_path)
    matrix = torch.zeros(50, 100)
    store.put(1, {"c": matrix[3]})
    held = store.get(1)
    assert held is not None
    assert held["c"].untyped_storage().nbytes() == 400
    matrix.fill_(9.0)
    assert held["c"].sum() == 0


def test_without_a_directory_all_stays_in_memory() -> None:
    store = ClientStore(None, limit=STATE)
    for client in range(5):
        store.put(client, state(client))
    assert all(same(store.get(client), client) for client in range(5))


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damaged_segments_are_told(tmp_path: Path, damage: str) -> None:
    store = ClientStore(tmp_path, limit=STATE)
    for client in range(3):
        store.put(client, state(client))
    index = store.checkpoint()
    path = tmp_path / index["where"]["0"]
    path.unlink() if damage == "missing" else path.write_bytes(b"nonsense")
    with pytest.raises(StateError, match=f"is {damage}; restore it from a copy"):
        ClientStore(tmp_path, limit=STATE).restore(index)
    with pytest.raises(StateError, match=f"{path.name} cannot be read back"):
        store.get(0)


def test_a_run_with_state_on_disk_gives_the_same_model(tmp_path: Path) -> None:
    def train(folder: Path | None, megabytes: float) -> tuple[str, ClientStore]:
        run = Run(tiny.experiment(make_method("scaffold"), rounds=6, state_memory_mb=megabytes), folder)
        assert isinstance(run.carrier, VirtualCarrier)
        return run.go().summary["model_sha256"], run.carrier.store

    memory, _ = train(None, 100.0)
    (tmp_path / "run").mkdir()
    disk, store = train(tmp_path / "run", 0.0006)
    assert disk == memory
    assert store.memory_bytes <= 630
    assert len(store) == 6
