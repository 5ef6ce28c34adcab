"""The command that compares executors, on a sample of parts; all of them are in the contract test."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from motley.bench import agreement as bench
from motley.bench.agreement import agreement, compare, subjects
from motley.commands.cli import app
from motley.core.errors import UnknownNameError
from motley.core.part import PARTS
from motley.methods import METHODS, make_method

SAMPLE = ("proximal", "control_variates", "body_only", "rebafl", "fes")


def test_every_synchronous_part_and_method_is_a_subject() -> None:
    found = {(one.kind, one.name) for one in subjects()}
    assert {("part", "proximal"), ("method", "fedavg"), ("method", "scaffold")} <= found
    assert len(found) > 0.6 * (len(PARTS.entries) + len(METHODS.entries))


@pytest.mark.parametrize("name", SAMPLE)
def test_the_executors_agree(name: str) -> None:
    for row in agreement("cpu", [name], models=["mlp"]):
        assert row["agrees"], row
        assert 0 <= row["relative"] <= row["tolerance"] == 1e-5


def test_convolutions_agree() -> None:
    assert all(row["agrees"] for row in agreement("cpu", ["fedavg"], models=["cnn"]))


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = next(subjects(["fedprox"]))
    made = iter([make_method("fedprox(mu=0.01)"), make_method("fedprox(mu=0.5)")])
    row = compare(subject._replace(make=lambda: next(made)), "mlp", "cpu")
    assert not row["agrees"]
    assert row["relative"] > 1e-3


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="fedavvg"):
        agreement("cpu", ["fedavvg"])


def test_the_command_ends_with_an_error_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["bench", "agreement", "--device", "cpu", "--names", "plain_mean", "--json"]
    good = CliRunner().invoke(app, arguments)
    assert good.exit_code == 0
    assert {row["model"] for row in json.loads(good.stdout.splitlines()[-1])} == {"mlp", "cnn"}
    monkeypatch.setattr(bench, "TOLERANCE", {"cpu": -1.0})
    assert CliRunner().invoke(app, arguments).exit_code == 1


def test_results_carry_the_bytes() -> None:
    subject = next(subjects(["fedavg"]))
    row = compare(subject, "mlp", "cpu")
    assert row["same_bytes"]
