"""The prototype-inversion check: its measures by hand, and the command on digits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from motley.commands.cli import app
from motley.core.errors import InputError
from motley.core.keys import Key
from motley.reproduce.inversion import Attack, decoder, error, made_up_prototypes, membership

SMALL = ["data=digits", "model=mlp", "partition=drawn(per_client=2, samples=60)", "rounds=2"]


def test_error_by_hand() -> None:
    images = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    assert error(torch.tensor([0.5, 1.0]), images) == pytest.approx(0.125)
    assert error(images, images) == 0.0


def test_members_are_told_apart_only_where_they_differ() -> None:
    g = torch.Generator().manual_seed(0)
    near, far = torch.rand(40, 5, generator=g) * 0.1, torch.rand(60, 5, generator=g) * 0.1 + 0.5
    assert membership(torch.zeros(5), near, far) == 1.0
    alike = membership(torch.zeros(5), torch.rand(400, 5, generator=g), torch.rand(600, 5, generator=g))
    assert alike == pytest.approx(0.5, abs=0.06)


def test_a_decoder_inverts_what_can_be_inverted() -> None:
    g = torch.Generator().manual_seed(1)
    source = torch.randn(500, 6, generator=g)
    target = torch.sigmoid(source @ torch.randn(6, 4, generator=g))
    net = decoder(source, target, Attack(width=32, epochs=30), Key.root(0))
    with torch.no_grad():
        assert error(net(source), target) < 0.1 * error(target.mean(0), target)
    again = decoder(source, target, Attack(width=32, epochs=30), Key.root(0))
    assert torch.equal(net(source), again(source))


def test_made_up_prototypes_are_means_within_a_class() -> None:
    y = torch.tensor([0] * 5 + [1] * 5)
    features = torch.nn.functional.one_hot(y).float()
    sources, targets = made_up_prototypes(features, 2 * features, y, 3, Key.root(0))
    assert torch.equal(sources, torch.eye(2).repeat_interleave(20, 0))
    assert torch.allclose(targets, 2 * sources)


def test_the_command_reports_against_chance(tmp_path: Path) -> None:
    arguments = ["privacy", "prototypes", *SMALL, "--epochs", "2", "--attacked", "4", "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    report = json.loads(result.stdout.splitlines()[-1])
    assert [row["what"] for row in report["rows"]][:2] == ["chance (mean image)", "class mean (label alone)"]
    assert report["rows"][0]["of_chance"] == 1.0
    assert report["rows"][1]["error"] < report["rows"][0]["error"]
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "prototypes.json", "prototypes.png"}


def test_a_method_without_prototypes_is_refused() -> None:
    with pytest.raises(InputError, match="sends no prototypes"):
        CliRunner().invoke(app, ["privacy", "prototypes", *SMALL, "method=fedavg"], catch_exceptions=False)
