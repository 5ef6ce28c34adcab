"""Runs that end early: what can be asked for, when it is time, and that a resumed run ends where it would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import motley
from motley.client.problems import Classification, Regression
from motley.core.errors import InputError, RecipeError, UnknownNameError
from motley.runtime.launch import Run
from motley.runtime.records import Record
from motley.runtime.stopping import Stall, Target, parse_stop, reason_to_stop, recorded
from tests.runtime.killable import facts

BASE: dict[str, Any] = {
    "data": "digits", "clients": 8, "cohort": 3, "rounds": 12, "model": "mlp(hidden=[8])", "executor": "loop",
    "checkpoint_seconds": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("accuracy>=0.9", [Target("accuracy", 1, 0.9)]),
        ("accuracy >= 0.9 for 3", [Target("accuracy", 1, 0.9, 3)]),
        ("loss<=4e-1", [Target("loss", -1, 0.4)]),
        ("accuracy stalls for 10", [Stall("accuracy", 1, 10)]),
        ("validation_loss stalls for 2 by 0.01", [Stall("validation_loss", -1, 2, 0.01)]),
        ("train_loss stalls for 1 or macro_f1>=.5", [Stall("train_loss", -1, 1), Target("macro_f1", 1, 0.5)]),
    ],
)
def test_what_can_be_asked_for(text: str, rules: list[Any]) -> None:
    assert parse_stop(text, Classification()) == rules


def test_the_problem_says_which_way_is_better() -> None:
    assert [rule.better for rule in parse_stop("mae stalls for 2 or r2 stalls for 2", Regression())] == [-1, 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "times"),  # after how many values of the list below it is time
    [
        ("accuracy>=0.5", 2),
        ("accuracy>=0.5 for 2", 5),
        ("accuracy<=0.4", 1),
        ("accuracy stalls for 2", 4),
        ("accuracy stalls for 2 by 0.2", 4),
        ("accuracy stalls for 3", None),
        ("accuracy stalls for 3 by 0.3", 5),
        ("accuracy>=0.99 or accuracy>=0.7", 5),
    ],
)
def test_when_it_is_time(text: str, times: int | None) -> None:
    """Worked out by hand: the best before the last two of 0.1 0.5 0.4 0.45 is 0.5, which neither is better than."""
    values = [0.1, 0.5, 0.4, 0.45, 0.7, 0.6]
    values = [0.1, 0.5, 0.4, 0.5, 0.7, 0.6] if "for 2" in text and ">=" in text else values
    rules = parse_stop(text, Classification())
    found = next((n for n in range(1, len(values) + 1) if any(rule.met(values[:n]) for rule in rules)), None)
    assert found == times


def test_only_rounds_that_were_evaluated_count() -> None:
    records = [Record(n, 0.0, 0.0, 1, 1, 0, 0, 0, 0, scores=s) for n, s in enumerate([{}, {"accuracy": 0.5}, {}], 1)]
    assert recorded(records, "accuracy") == [0.5]
    assert reason_to_stop([Target("accuracy", 1, 0.5)], records) is not None
    assert reason_to_stop([Target("accuracy", 1, 0.5, 2)], records) is None


def test_a_run_ends_at_its_target_with_the_model_it_had_then() -> None:
    whole = motley.run(BASE)
    bound = sorted(record.scores["accuracy"] for record in whole.records)[6]
    first = next(record.round for record in whole.records if record.scores["accuracy"] >= bound)
    text = f"accuracy>={bound}"
    cut = motley.run(BASE, stop=text)
    assert (cut.summary["rounds"], cut.summary["ended"]) == (first, text)
    assert cut.summary["model_sha256"] == motley.run(BASE, rounds=first).summary["model_sha256"]


def test_a_run_that_is_resumed_ends_where_it_would_have(tmp_path: Path) -> None:
    asked = {**BASE, "method": "fedasync", "rounds": 40, "stop": "loss stalls for 3 by 0.2"}
    whole = motley.run(asked)
    assert 3 < whole.summary["rounds"] < 40

    def interrupt(record: Record) -> None:
        if record.round == whole.summary["rounds"] - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        motley.run(asked, tmp_path / "run", [interrupt])
    resumed = motley.resume(tmp_path / "run")
    assert facts(resumed.records) == facts(whole.records)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    again = motley.resume(tmp_path / "run")  # where it has ended it stays
    assert facts(again.records) == facts(whole.records)
    assert again.summary["ended"] == "loss stalls for 3 by 0.2"


def test_any_score_of_ones_own_and_diagnostics() -> None:
    def far(outputs: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        return {"far": float((outputs.squeeze(-1) - y).abs().max())}

    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    problem = motley.Problem(lambda o, y: (o.squeeze(-1) - y) ** 2, far, goals={"far": -1}, name="far")
    asked: dict[str, Any] = {"model": nn.Linear(3, 1), "data": (x, x.sum(1)), "problem": problem, "clients": 4}
    assert motley.train(**asked, rounds=5, cohort=2, stop="far<=1e9 for 2").summary["rounds"] == 2
    with pytest.raises(UnknownNameError, match="no recorded score named 'fat'; did you mean 'far'"):
        motley.train(**asked, rounds=5, cohort=2, stop="fat<=1")
    assert motley.run(BASE, diagnostics="diversity", stop="diversity>=0").summary["rounds"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accuracy=0.9", "Cannot read stop='accuracy=0.9'"),
        ("accuracy>=high", "join several with 'or'"),
        ("accuracy>=0.9 for 0", "Cannot read"),
        ("accuracy stalls", "Cannot read"),
        ("acuracy>=0.9", "did you mean 'accuracy'"),
        ("validation_loss<=1", "no recorded score named 'validation_loss'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        motley.run(BASE, tmp_path / "run", stop=text)
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------------ extending


@pytest.mark.parametrize("method", ["scaffold", "fedasync", "fedbuff(buffer=2)"])
def test_a_finished_run_that_is_extended_is_the_longer_run(method: str, tmp_path: Path) -> None:
    asked = {**BASE, "method": method, "fleet": "uniform_spread(ratio=4)", "evaluate_every": 3}
    short = motley.run(asked, tmp_path / "run", rounds=5)
    assert short.records[-1].judged
    longer, whole = motley.resume(tmp_path / "run", rounds=11), motley.run(asked, rounds=11)
    assert facts(longer.records) == facts(whole.records)
    assert longer.summary["model_sha256"] == whole.summary["model_sha256"]
    assert motley.resume(tmp_path / "run").summary["rounds"] == 11  # it is known from now on


def test_an_extension_that_is_interrupted_goes_on_to_its_own_end(tmp_path: Path) -> None:
    motley.run(BASE, tmp_path / "run", rounds=3)

    def interrupt(record: Record) -> None:
        if record.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        motley.resume(tmp_path / "run", [interrupt], rounds=8)
    assert not (tmp_path / "run" / "summary.json").exists()
    whole = motley.run(BASE, rounds=8)
    assert motley.resume(tmp_path / "run").summary["model_sha256"] == whole.summary["model_sha256"]


def test_a_run_that_stopped_goes_on_without_its_target_or_with_another(tmp_path: Path) -> None:
    first = motley.run(BASE, tmp_path / "run", stop="accuracy>=0")
    assert first.summary["rounds"] == 1
    assert motley.resume(tmp_path / "run", stop="loss<=100 for 3").summary["rounds"] == 3
    with pytest.raises(InputError, match=r"would have ended after round 2, but it has come to round 3"):
        motley.resume(tmp_path / "run", stop="loss<=100 for 2")
    done = motley.resume(tmp_path / "run", stop=None)
    assert (done.summary["rounds"], done.summary["ended"]) == (12, "rounds")
    assert done.summary["model_sha256"] == motley.run(BASE).summary["model_sha256"]


def test_what_would_end_before_what_is_there_is_refused(tmp_path: Path) -> None:
    result = motley.run(BASE, tmp_path / "run", rounds=4)
    before = (tmp_path / "run" / "recipe.toml").read_text()
    with pytest.raises(RecipeError, match="has come to round 4, so it cannot end after 3"):
        motley.resume(tmp_path / "run", rounds=3)
    with pytest.raises(RecipeError, match="virtual seconds"):
        motley.resume(tmp_path / "run", until=result.records[-1].virtual_time / 2)
    with pytest.raises(RecipeError, match="cannot change 'lr'"):
        motley.resume(tmp_path / "run", changes=["lr=1"])
    with pytest.raises(RecipeError, match="cannot be given another 'stop': Cannot read"):
        motley.resume(tmp_path / "run", stop="soon")
    assert (tmp_path / "run" / "recipe.toml").read_text() == before
    phases = {**BASE, "phases": [{"name": "one", "rounds": 1}]}
    motley.run(phases, tmp_path / "phases")
    with pytest.raises(RecipeError, match="with phases cannot be extended"):
        motley.resume(tmp_path / "phases", rounds=20)


# ------------------------------------------------------------------------------------------ callbacks


def test_a_callback_has_the_model() -> None:
    seen: list[dict[str, torch.Tensor]] = []

    def look(run: Run, record: Record) -> None:
        seen.append(run.module.state_dict())

    result = motley.run(BASE, rounds=2, listeners=[look, lambda record, more=None: None])
    assert len(seen) == 2
    last = result.model.state_dict()
    assert all(torch.equal(last[name], value) for name, value in seen[-1].items())
    assert any(not torch.equal(last[name], value) for name, value in seen[0].items())
