"""``motley list``: the same from the registries, for people and machines."""

from __future__ import annotations

import json

import pytest

from motley.commands.listing import KINDS
from tests.cli.conftest import Motley


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_names_and_summaries(motley: Motley, kind: str) -> None:
    end = motley("list", kind, "--json")
    assert end.code == 0
    rows = json.loads(end.out)
    assert rows
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names))
    assert all(row["summary"].strip() for row in rows), "every one says what it does"
    shown = motley("list", kind)
    assert shown.code == 0
    assert all(name in shown.out for name in names)


def test_what_is_always_there(motley: Motley) -> None:
    def names(kind: str) -> set[str]:
        return {row["name"] for row in json.loads(motley("list", kind, "--json").out)}

    assert names("recipes") >= {"digits", "mnist_two_classes"}
    assert names("executors") >= {"auto", "loop", "pool", "batched"}
    assert names("datasets") >= {"digits", "mnist", "fashion_mnist", "cifar10", "synthetic"}
    assert names("methods") >= {"fedavg", "fedprox", "scaffold", "feddyn", "fedavgm", "fedadam", "ama"}


def test_parts_say_seam_hooks_and_arguments(motley: Motley) -> None:
    rows = {row["name"]: row for row in json.loads(motley("list", "parts", "--json").out)}
    assert rows["proximal"]["seam"] == "objective"
    assert rows["proximal"]["hooks"] == ["penalty"]
    assert rows["proximal"]["parameters"] == {"mu": 0.01}
