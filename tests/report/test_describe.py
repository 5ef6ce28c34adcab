"""The description: its numbers, its words, its pages."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from motley.core.keys import Key
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData, Partition
from motley.fleet import make_fleet
from motley.report.advice import RULES, percent, seconds
from motley.report.description import Description, Histogram, describe, sample_mixes
from motley.report.description_figure import render_html, render_png
from motley.report.description_terminal import bar, render_terminal, sparkline

KEY = Key.root(9)
WANTED = [
    "clients",
    "samples",
    "size_min",
    "size_max",
    "size_mean",
    "size_std",
    "gini",
    "c_score",
    "emd",
    "js",
    "kl",
    "classes_missed_by_cohort",
    "straggler_rate",
    "dropout_rate",
    "round_time",
    "participation_entropy",
    "deadlines",
    "speed_quantiles",
]


def federated(parts: list[list[int]], classes: int = 4) -> FederatedData:
    """Clients with given labels."""
    y = torch.tensor([label for part in parts for label in part])
    x = torch.zeros(len(y), 2)
    index = np.split(np.arange(len(y)), np.cumsum([len(part) for part in parts])[:-1])
    return FederatedData(Dataset("made", x, y, x[:1], y[:1], classes), Partition.of(index))


def two_classes_each(n: int = 24) -> FederatedData:
    return federated([[i % 4] * 10 + [(i + 1) % 4] * 5 for i in range(n)])


def about(data: FederatedData, spec: str = "ideal", **changes: object) -> Description:
    settings = {"cohort": 2, "epochs": 2.0, "batch_size": 8, "flops_per_sample": 1e6, "model_bytes": 10_000}
    fleet = make_fleet(spec, data.n_clients, KEY)
    return describe(data, fleet, **{**settings, "rounds": 100, "key": KEY, **changes})  # type: ignore[arg-type]


def test_numbers_by_hand() -> None:
    d = about(federated([[0, 0, 0, 0], [1, 1], [0, 1]], classes=2), cohort=1)
    assert (d.clients, d.samples, d.classes) == (3, 8, 2)
    assert (d.size_min, d.size_max) == (2, 4)
    assert d.size_mean == pytest.approx(8 / 3)
    assert d.size_std == pytest.approx(np.std([4, 2, 2]))
    assert d.gini == pytest.approx(1 / 6)  # sum |x_i - x_j| = 8, over 2 * 9 * 8/3
    assert d.mix == (5 / 8, 3 / 8)
    assert d.c_score == pytest.approx((0.75 + 1.25 + 0.25) / 3)
    assert d.emd == pytest.approx((0.75 * 4 + 1.25 * 2 + 0.25 * 2) / 8)
    assert d.classes_missed_by_cohort == pytest.approx(1 / 3)  # two of three clients miss one of two classes
    assert d.cohorts_missing_a_class == pytest.approx(2 / 3, abs=0.05)
    assert d.classes_per_client == pytest.approx(4 / 3)


def test_absence_makes_cohorts_smaller_and_poorer() -> None:
    data = two_classes_each()
    everybody, few = about(data, cohort=24), about(data, "bernoulli(p=0.05)", cohort=24)
    assert everybody.classes_missed_by_cohort == 0.0
    assert few.classes_missed_by_cohort > 0.2
    assert few.cohorts_missing_a_class > 0.5


def test_same_seed_same_description() -> None:
    data, spec = two_classes_each(), "freezefl+fedsae+bernoulli+loss"
    assert about(data, spec).to_json() == about(data, spec).to_json()
    assert about(data, spec).to_json() != about(data, spec, key=Key.root(10)).to_json()


def test_json_is_one_plain_object() -> None:
    found = json.loads(about(two_classes_each(), "fedsae+bernoulli", deadline=1.0).to_json())
    assert set(WANTED) <= set(found)
    assert found["deadlines"][0].keys() == {"name", "deadline", "round_time", "in_time"}
    assert found["deadlines"][-1]["deadline"] == 1.0
    assert {"finding", "remedy", "why"} == found["advice"][0].keys()
    assert isinstance(found["summary"], str)


def test_infinities_become_null() -> None:
    d = replace(about(two_classes_each()), kl=float("inf"))
    assert json.loads(d.to_json())["kl"] is None


CASES = [
    ("two", "ideal", {}, "of cohorts miss a class"),
    ("two", "ideal", {}, "label mixes differ"),
    ("uneven", "ideal", {}, "spread unequally"),
    ("two", "ideal", {"batch_size": 100}, "less than one minibatch"),
    ("two", "affordable(low=1, high=1)", {"epochs": 5.0}, "cannot afford 5 epochs"),
    ("two", "limited(fraction=0.5)", {}, "50 % of devices are computing-limited"),
    ("two", "freezefl", {}, "every round waits for its slowest"),
    ("two", "freezefl", {"deadline": 0.01}, "too slow for the deadline of 0.01 s"),
    ("two", "ama_fes_severe", {}, "arrive rounds too late"),
    ("two", "rebafl", {}, "are away at any time"),
    ("two", "loss(probability=0.5)", {}, "(4 to receive 2)"),
    ("two", "freezefl", {"deadline": 0.006}, "Few clients give most of the updates"),
    ("two", "bandwidth(up=1000, down=1000)", {}, "time is transmission"),
]


@pytest.mark.parametrize(("which", "spec", "changes", "words"), CASES)
def test_each_rule_speaks_when_it_should(which: str, spec: str, changes: dict[str, object], words: str) -> None:
    data = two_classes_each() if which == "two" else federated([[0, 1, 2, 3] * (1 + i**2) for i in range(10)])
    said = " / ".join(f"{a.finding}: {a.remedy}" for a in about(data, spec, **changes).advice)
    assert words in said
    alike = about(federated([[0, 1, 2, 3] * 5] * 10))
    assert words not in " / ".join(f"{a.finding}: {a.remedy}" for a in alike.advice)


def test_every_rule_has_a_case_and_silence_is_a_sentence() -> None:
    assert len(RULES) == len({words for *_, words in CASES}) - 1  # slow devices speak in two ways
    advice = about(federated([[0, 1, 2, 3] * 5] * 10)).advice
    assert [a.remedy for a in advice] == ["plain FedAvg is a fair choice"]


def test_remedy_of_the_example() -> None:
    advice = about(two_classes_each()).advice[0]
    assert re.match(r"\d+ % of cohorts miss a class", advice.finding)
    assert advice.remedy == "consider relaxed balanced softmax or delayed aggregation"


def test_numbers_for_people() -> None:
    assert [percent(x) for x in (0, 0.001, 0.701, 0.999, 1)] == [
        "0 %",
        "less than 1 %",
        "70 %",
        "more than 99 %",
        "100 %",
    ]
    assert [seconds(x) for x in (0.1234, 90, 600, 7300, 864000)] == ["0.123 s", "90 s", "10 min", "2.03 h", "10 days"]


def test_histograms_count_everything() -> None:
    for values in (np.arange(1, 50), np.geomspace(1, 1e4, 77), np.full(5, 3), np.array([3, 4, 4]), np.zeros(3)):
        assert sum(Histogram.of(values).counts) == len(values)
    assert Histogram.of(np.array([3, 4, 4])).edges == (2.5, 3.5, 4.5)
    assert Histogram.of(np.geomspace(1, 1e4, 77)).log


def test_glyphs() -> None:
    assert sparkline(Histogram((0, 1, 2, 3), (0, 1, 80))) == " ▁█"
    assert bar(0.5, 4) == "██░░"
    assert bar(7.0, 4) == "████"


def test_mixes_are_ordered_by_main_class() -> None:
    labels = np.array([[1, 9], [9, 1], [0, 5], [6, 4]], np.int32)
    np.testing.assert_allclose(sample_mixes(labels, 10), [[0.9, 0.1], [0.6, 0.4], [0, 1], [0.1, 0.9]])
    assert len(sample_mixes(np.ones((1000, 3), np.int32), 10)) == 10


@pytest.mark.parametrize("width", [60, 80, 120])
def test_terminal_page_fits_and_says_it_all(width: int) -> None:
    d = about(two_classes_each(), "freezefl+ama_fes_moderate+bernoulli(p=0.5)+loss", deadline=2.0)
    out = StringIO()
    Console(file=out, width=width).print(render_terminal(d))
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= width
    for words in ("24 clients", "C-score", "stragglers", "dropouts", "Label mix", "Deadline", "recipe"):
        assert words in text
    assert "…" not in text or width < 80


def test_terminal_page_of_many_classes() -> None:
    d = about(federated([[i, i + 1, 30 - i] for i in range(30)], classes=40))
    out = StringIO()
    Console(file=out, width=120).print(render_terminal(d))
    assert "12 most common classes" in out.getvalue()


@pytest.mark.parametrize("spec", ["ideal", "speed_classes(speeds=[1, 0.1, 0.001])+bernoulli+loss"])
def test_picture(tmp_path: Path, spec: str) -> None:
    data = federated([[0, 1, 2, 3] * (1 + i**2) for i in range(10)])
    render_png(about(data, spec), data, tmp_path / "page.png")
    content = (tmp_path / "page.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == 1200
    assert 20_000 < len(content) < 300_000


def test_html_page_stands_alone(tmp_path: Path) -> None:
    data = two_classes_each()
    d = replace(about(data, "fedsae+bernoulli"), dataset="<made>")
    render_html(d, data, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;made&gt;" in page
    assert "<made>" not in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    embedded = re.search(r"base64,([^\"]+)", page)
    assert embedded is not None
    assert base64.b64decode(embedded[1]).startswith(b"\x89PNG")
    for words in (d.summary, "participation entropy", d.advice[0].remedy):
        assert words in page
