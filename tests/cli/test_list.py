"""``motley list``: the same from the registries, for people and machines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from motley.commands import cli
from motley.commands.listing import KINDS
from motley.core.part import PARTS, Part, part
from tests.cli.conftest import Motley

ROOT = Path(__file__).parents[2]


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


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    code = (
        "import sys\nsys.argv = ['motley', '--help']\nfrom motley.commands.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'numpy', 'sklearn', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("run", "report", "reproduce", "privacy", "describe", "tune", "bench"):
        assert name in done.stdout


@pytest.mark.parametrize("name", cli.LATER)
def test_commands_that_are_loaded_when_called(motley: Motley, name: str) -> None:
    end = motley(name, "--help")
    assert end.code == 0
    assert f"motley {name}" in end.out
    assert cli.LATER[name][2].rstrip(".") in end.out


def test_a_part_that_needs_arguments_is_listed(motley: Motley, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PARTS, "entries", dict(PARTS.entries))

    @part("objective")
    def pulls_to(target: float) -> Part:
        """Pulls somewhere."""
        return Part()

    rows = {row["name"]: row for row in json.loads(motley("list", "parts", "--json").out)}
    assert rows["pulls_to"]["hooks"] is None
    assert rows["pulls_to"]["parameters"] == {"target": None}
    assert "pulls_to" in motley("list", "parts").out


@pytest.mark.parametrize(
    ("kind", "some"),
    [("problems", {"classification", "binary", "multilabel", "next_token", "wgan_gp"}), ("phases", {"train", "gan"})],
)
def test_a_process_that_does_nothing_else_lists_all(kind: str, some: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "motley", "list", kind, "--json"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert {row["name"] for row in json.loads(done.stdout)} >= some
