"""Tables and plots of runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import motley
from motley.core.errors import StateError
from motley.core.wording import duration, megabytes, per_cent
from motley.report.plots import AXES, BYTES, SECONDS, band, plot, scale
from motley.report.run_data import Group, group, mean_and_interval, read_run
from motley.report.summary_tables import markdown, rows, swing
from motley.runtime.launch import run


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two methods, one of them with two seeds; the last unfinished."""
    parent = tmp_path_factory.mktemp("runs")
    small = {"rounds": 4, "epochs": 1, "clients": 6, "cohort": 2}
    made = []
    for name, changes in {"a": {"seed": 0}, "b": {"seed": 1}, "c": {"method": "fedavg", "evaluate_every": 2}}.items():
        run("digits", folder=parent / name, **small, **changes)
        made.append(parent / name)
    (made[-1] / "summary.json").unlink()
    return made


@pytest.fixture(scope="module")
def groups(folders: list[Path]) -> list[Group]:
    return group([read_run(folder) for folder in folders])


def test_seeds_stand_together_and_labels_say_what_differs(groups: list[Group]) -> None:
    assert [len(one.runs) for one in groups] == [2, 1]
    assert [one.label for one in groups] == ["scaffold, evaluate_every=1", "fedavg, evaluate_every=2"]
    alone = group(groups[0].runs)
    assert [one.label for one in alone] == ["digits, scaffold"]


def test_rows_are_means_over_seeds(groups: list[Group], folders: list[Path]) -> None:
    first, second = rows(groups)
    finals = [json.loads((folder / "summary.json").read_text()) for folder in folders[:2]]
    assert first["accuracy"] == pytest.approx(sum(end["accuracy"] for end in finals) / 2)
    assert first["best_accuracy"] == pytest.approx(sum(end["best_accuracy"] for end in finals) / 2)
    assert first["bytes_up"] == finals[0]["bytes_up"]
    assert first["seeds"] == [0, 1]
    assert first["finished"]
    assert not second["finished"]
    assert second["accuracy_interval"] is None
    json.dumps([first, second])


def test_markdown_is_a_table(groups: list[Group]) -> None:
    table = markdown(groups).split("\n\n")[0].splitlines()
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1
    assert len({len(line) for line in table}) == 1, "columns line up"
    assert "(unfinished)" in table[3]


def test_interval_is_students() -> None:
    assert mean_and_interval([0.5]) == (0.5, None)
    mean, half = mean_and_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.302653 * 1.0 / np.sqrt(3), rel=1e-6)


def test_swing_is_the_deviation_at_the_end(groups: list[Group]) -> None:
    one = groups[0].runs[0]
    assert swing(one) == pytest.approx(np.std(one.history[-2:]))


def test_a_problem_of_ones_own_says_what_is_best(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    error = motley.Problem(lambda outputs, y: (outputs.squeeze(-1) - y) ** 2, name="squares")
    given = {"clients": 4, "cohort": 2, "rounds": 3, "lr": 0.01, "folder": tmp_path / "run"}
    motley.train(nn.Linear(3, 1), (x, x.sum(1)), problem=error, **given)
    one = read_run(tmp_path / "run")
    assert one.recipe.problem == "squares"
    assert one.headline == "loss"
    assert one.best == min(one.history) < max(one.history)


def test_plot_draws_every_group_in_every_panel(
    groups: list[Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib.pyplot as plt

    kept = []
    monkeypatch.setattr(plt, "close", kept.append)
    path = plot(groups, tmp_path / "below" / "report.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    (figure,) = kept
    assert len(figure.axes) == len(AXES) == 3
    for axes in figure.axes:
        assert len(axes.get_lines()) == 2
        assert len(axes.collections) == 1, "one band, of the group with two seeds"
        assert axes.get_xlabel()
    rounds = figure.axes[0].get_lines()[1].get_xdata()
    assert list(rounds) == [2, 4], "only evaluated rounds"
    traffic = figure.axes[2].get_lines()[0].get_xdata()
    records = groups[0].runs[0].records
    assert traffic[-1] * 1e3 == pytest.approx(sum(r.bytes_up + r.bytes_down for r in records), rel=1e-6) or (
        traffic[-1] * 1e6 == pytest.approx(sum(r.bytes_up + r.bytes_down for r in records), rel=1e-6)
    )
    monkeypatch.undo()
    plt.close(figure)


def test_band_over_unequal_axes() -> None:
    xs = [np.array([1.0, 3.0]), np.array([2.0, 4.0])]
    ys = [np.array([0.0, 2.0]), np.array([2.0, 4.0])]
    x, mean, low, high = band(xs, ys, n=3)
    assert x.tolist() == [2.0, 2.5, 3.0]
    assert mean.tolist() == [1.5, 2.0, 2.5]
    assert low.tolist() == [1.0, 1.5, 2.0]
    assert high.tolist() == [2.0, 2.5, 3.0]


@pytest.mark.parametrize(
    ("value", "units", "name"),
    [(0.5, SECONDS, "ms"), (90, SECONDS, "s"), (600, SECONDS, "min"), (8000, SECONDS, "h"), (5e5, BYTES, "kB")],
)
def test_units(value: float, units: tuple[tuple[float, float, str], ...], name: str) -> None:
    assert scale(value, units)[1] == name


def test_numbers_for_people() -> None:
    assert per_cent(0.934) == "93.4 %"
    assert per_cent(0.934, 0.008) == "93.4 ± 0.8 %"
    assert [duration(s) for s in (0, 0.0123, 5, 600, 9000)] == ["0.0 s", "12 ms", "5.0 s", "10.0 min", "2.5 h"]
    assert megabytes(2_500_000) == "2.5 MB"


def test_runs_without_results_are_refused(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"no recipe\.toml"):
        read_run(tmp_path)
    (tmp_path / "recipe.toml").write_text((folders[0] / "recipe.toml").read_text())
    (tmp_path / "rounds.jsonl").write_text("")
    with pytest.raises(StateError, match="no evaluated round yet"):
        read_run(tmp_path)
