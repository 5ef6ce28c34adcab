"""Phases over one world: each with its directory, checkpoint, records and resumption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import motley
from motley.core.errors import InputError, StateError
from motley.report.summary_tables import print_summary
from motley.runtime.launch import launch
from motley.runtime.phases import make_phases
from motley.runtime.recipe import load
from motley.runtime.records import Record, read_records
from tests.runtime.killable import facts, snapshots

TWO: dict[str, Any] = {
    "name": "two",
    "data": "digits",
    "partition": "classes(per_client=2)",
    "clients": 8,
    "cohort": 4,
    "model": "mlp(hidden=[12])",
    "lr": 0.1,
    "batch_size": 16,
    "seed": 2,
    "executor": "loop",
    "checkpoint_seconds": 0.0,
    "phases": [
        {"name": "body", "rounds": 4, "method": "scaffold"},
        {
            "name": "head",
            "rounds": 3,
            "initial": "body",
            "method": "fedavg+classifier_only",
            "skew": "rotation(degrees=[0, 90])",
            "lr": 0.05,
        },
    ],
}


def whole(folder: Path | None = None) -> motley.Result:
    return launch(load(TWO), folder)


def test_the_second_phase_starts_from_the_first_and_trains_the_head_alone(tmp_path: Path) -> None:
    result = whole(tmp_path / "run")
    first = motley.run({**TWO, "phases": [], **{k: v for k, v in TWO["phases"][0].items() if k != "name"}})
    assert result.summary["phases"]["body"]["model_sha256"] == first.summary["model_sha256"]
    assert result.net is not None
    head = result.net.layout.layers[result.net.head_layer]
    assert torch.equal(result.params[: head.start], first.params[: head.start]), "the body stayed"
    assert not torch.equal(result.params[head.start :], first.params[head.start :])


def test_the_whole_leaves_a_model_as_a_plain_run_does(tmp_path: Path) -> None:
    result = whole(tmp_path / "run")
    found = motley.load_model(tmp_path / "run").state_dict()
    kept = motley.load_model(tmp_path / "run" / "2-head").state_dict()
    assert found.keys() == kept.keys()
    assert all(torch.equal(found[name], kept[name]) for name in found)
    assert motley.export(tmp_path / "run", tmp_path / "model.pt", "torchscript").is_file()
    again = motley.run({**TWO, "phases": [], "rounds": 1, "initial": str(tmp_path / "run")})
    assert again.summary["model_sha256"] != result.summary["model_sha256"]


def test_the_last_words_tell_every_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = whole(tmp_path / "run")
    print_summary(load(TWO), result.summary, quiet=True)
    told = capsys.readouterr().out
    assert "4 rounds of scaffold (body), then 3 rounds of fedavg+classifier_only (head)" in told


def test_every_phase_looks_like_a_run(tmp_path: Path) -> None:
    result = whole(tmp_path / "run")
    for name, rounds in (("1-body", 4), ("2-head", 3)):
        place = tmp_path / "run" / name
        assert len(read_records(place / "rounds.jsonl")) == rounds
        for file in ("recipe.toml", "summary.json", "model.safetensors", "checkpoint/checkpoint.json"):
            assert (place / file).is_file()
    body, head = (read_records(tmp_path / "run" / name / "rounds.jsonl") for name in ("1-body", "2-head"))
    assert head[0].virtual_time > body[-1].virtual_time, "one clock"
    assert result.summary["run"] == str(tmp_path / "run")


@pytest.mark.parametrize("after", [1, 3, 4, 5, 6])
def test_killed_in_any_phase_and_resumed(after: int, tmp_path: Path) -> None:
    """Four rounds of the first phase, then three of the second; broken off after so many."""
    seen = 0

    def kill(record: Record) -> None:
        nonlocal seen
        seen += 1
        if seen == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(load(TWO), tmp_path / "run", [kill])
    resumed = motley.resume(tmp_path / "run")
    assert resumed.summary["model_sha256"] == whole().summary["model_sha256"]


def test_killed_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between two phases, before the first checkpoint of one, and before the summary of the whole is written."""
    with monkeypatch.context() as patched:
        taken = snapshots(patched, tmp_path / "run", tmp_path / "taken", "recipe.toml")
        expected = whole(tmp_path / "run")
    names = ["1-body/summary.json", "2-head/recipe.toml", "2-head/checkpoint/checkpoint.json", "2-head/summary.json"]
    edges = [next(i for i, place in enumerate(taken) if (place / name).exists()) for name in names]
    chosen = sorted({i for edge in edges for i in (edge - 1, edge)} | {0, len(taken) // 3, len(taken) - 1})
    for number in chosen:
        resumed = motley.resume(taken[number])
        assert resumed.summary["model_sha256"] == expected.summary["model_sha256"], f"snapshot {number}"
        assert facts(resumed.records) == facts(expected.records), f"snapshot {number}"
        assert (taken[number] / "summary.json").is_file()


def test_resuming_a_finished_run_of_phases_trains_nothing_and_gives_its_result(tmp_path: Path) -> None:
    expected = whole(tmp_path / "run")
    seen: list[Record] = []
    again = motley.resume(tmp_path / "run", [seen.append])
    assert not seen
    assert torch.equal(again.params, expected.params)
    assert facts(again.records) == facts(expected.records)
    assert again.summary == expected.summary


def test_the_time_of_a_phase_counts_from_its_beginning() -> None:
    both = {"rounds": 50, "until": 0.02, "method": "fedavg", "initial": None}
    phases = [{"name": "one", **both}, {"name": "two", **both, "initial": "one"}]
    one, two = launch(load({**TWO, "phases": phases})).summary["phases"].values()
    assert one["ended"] == two["ended"] == "until"
    assert one["virtual_time"] <= 0.02 < two["virtual_time"] <= one["virtual_time"] + 0.02


def test_the_recipe_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(load(TWO).to_toml())
    assert load(str(path)) == load(TWO)


@pytest.mark.parametrize(
    ("phases", "told"),
    [
        ([{"name": "a"}, {"name": "a"}], "needs a name of its own"),
        ([{"name": "a/b"}], "needs a name of its own"),
        ([{"name": "a", "initial": "nowhere"}], "no earlier phase and no file"),
        ([{"name": "a", "kind": "trian"}], "did you mean 'train'"),
        ([{"name": "a", "ruonds": 3}], "did you mean 'rounds'"),
    ],
)
def test_wrong_phases_are_told_before_anything_is_written(phases: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        launch(load({**TWO, "phases": phases}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


MISTAKES = {
    ("method", "fedavq"): "did you mean 'fedavg'",
    ("partition", "dirichle"): "did you mean 'dirichlet'",
    ("protocol", "lat"): "did you mean 'late'",
    ("model", "mlpp"): "did you mean 'mlp'",
}


def test_a_mistake_in_a_later_phase_is_told_first(tmp_path: Path) -> None:
    for mistake, told in MISTAKES.items():
        wrong = [*TWO["phases"][:1], {"name": "head", "initial": "body", **dict([mistake])}]
        with pytest.raises(InputError, match=told):
            launch(load({**TWO, "phases": wrong}), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_models_that_do_not_fit_are_refused() -> None:
    wrong = [*TWO["phases"][:1], {"name": "other", "initial": "body", "model": "mlp(hidden=[7])", "rounds": 1}]
    with pytest.raises(StateError, match="of an earlier phase does not fit this network"):
        launch(load({**TWO, "phases": wrong}))


def test_phases_are_made_in_order() -> None:
    assert [phase.name for phase in make_phases(load(TWO))] == ["body", "head"]
