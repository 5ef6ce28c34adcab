"""`motley.extend` is enough: the examples outside the package use nothing else, run, and do what they say."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import motley
from motley import extend
from motley.core.registry import Registry

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
Load = Callable[[str], Any]


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What examples register is gone afterwards."""
    for found in vars(extend).values():
        if isinstance(found, Registry):
            monkeypatch.setattr(found, "entries", dict(found.entries))


@pytest.fixture
def load() -> Load:
    """An example as a module."""
    return lambda name: SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name=name))


def test_there_is_one_of_each() -> None:
    assert [path.stem for path in EXAMPLES] == ["ordinal", "over_selection", "replayed_trace", "threads"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_uses_the_public_surface_alone(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 100
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            assert all(one.name == "motley" or not one.name.startswith("motley.") for one in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("motley"):
            assert node.module == "motley.extend" or [one.name for one in node.names] == ["extend"]
        elif isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_") or ast.unparse(node.value) in ("self", "super()")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_from_anywhere(path: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "ANOTHER" not in done.stdout


def test_the_protocol_takes_the_first_and_waits_for_nobody(load: Load) -> None:
    found = load("over_selection").compare(rounds=6)
    first, all_of_them = found["takes the first"], found["waits for all"]
    assert first.summary["virtual_time"] < all_of_them.summary["virtual_time"]
    assert all(record.arrived == 5 or record.extra["thrown_away"] > 3 for record in first.records)


def test_the_protocol_takes_options_in_the_short_form(load: Load) -> None:
    load("over_selection")
    result = motley.run("digits", protocol="over_selection", rounds=2, cohort=4, options={"surplus": 1.0})
    assert [record.participants for record in result.records] == [8, 8]
    with pytest.raises(motley.InputError, match="surplus"):
        motley.run("digits", protocol="over_selection", rounds=2, options={"surplus": -1.0})


def test_threads_give_the_bits_of_the_loop(load: Load) -> None:
    load("threads")
    settings = {"rounds": 3, "cohort": 5, "method": "scaffold+moon"}
    ours = motley.run("digits", executor="threads(threads=2)", **settings)
    theirs = motley.run("digits", executor="loop", **settings)
    assert ours.summary["model_sha256"] == theirs.summary["model_sha256"]
    assert ours.summary["executor"] == "threads"


def test_a_trace_decides_who_comes_and_when(load: Load) -> None:
    trace = {(0, 1): 2.0, (1, 1): 5.0, (2, 1): None, (0, 2): 1.0, (3, 2): 30.0}
    result = load("replayed_trace").replay(trace, clients=4, rounds=2, cohort=4, method="scaffold", deadline=10.0)
    first, second = result.records
    assert (first.participants, first.arrived, first.lost, first.virtual_time) == (3, 2, 1, 5.0)
    assert (second.participants, second.arrived, second.late, second.virtual_time) == (2, 1, 1, 15.0)


def test_a_replay_that_is_saved_goes_on_as_it_was(load: Load) -> None:
    example = load("replayed_trace")
    experiment = extend.prepare(extend.load("digits", {"clients": 3, "method": "scaffold", "cohort": 3, "rounds": 2}))
    trace = {(client, number): 1.0 + client for client in range(3) for number in (1, 2)}
    first, second = (example.TraceCarrier(trace, 3, extend.EXECUTORS.make("loop", experiment.site)) for _ in range(2))
    extend.Run(experiment, carrier=first).go()
    second.load(extend.loads(extend.dumps(first.state())))
    assert second.now == first.now == 6.0
    assert second.kept.keys() == first.kept.keys() == {0, 1, 2}


def test_without_delays_a_trace_gives_the_model_of_a_simulation(load: Load) -> None:
    trace = {(client, number): 1.0 for client in range(6) for number in (1, 2, 3)}
    settings: dict[str, Any] = {"rounds": 3, "cohort": 3, "method": "scaffold", "executor": "loop"}
    replayed = load("replayed_trace").replay(trace, clients=6, **settings)
    simulated = motley.run("digits", clients=6, **settings)
    assert torch.equal(replayed.params, simulated.params)


def test_the_problem_is_learned_and_less_is_better(load: Load) -> None:
    result = load("ordinal").train(rounds=8)
    assert result.summary["headline"] == "distance"
    assert result.summary["best_distance"] == min(record.scores["distance"] for record in result.records)
    assert result.scores["distance"] < 0.7 * result.records[0].scores["distance"]


def test_parts_that_need_labels_are_refused_by_a_problem_without(load: Load) -> None:
    example = load("ordinal")
    model = torch.nn.Linear(8, 4)
    with pytest.raises(motley.ConflictError, match="needs class labels, which the problem 'ordinal' has not"):
        motley.train(model, example.severity(200), problem=example.Ordinal(5), method="rebafl", rounds=1)


def test_the_pages_show_the_examples_as_they_are() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("write_a*.md"))
    shown = re.findall(r"^```py\n(.*?)^```", pages, re.M | re.S)
    texts = [path.read_text() for path in EXAMPLES]
    assert len(shown) >= len(EXAMPLES)
    for text in shown:
        assert any(text in example for example in texts), text


# ------------------------------------------------------------------ the surface
def test_everything_listed_is_there_and_documented() -> None:
    page = (ROOT / "docs" / "extend.md").read_text()
    assert extend.__all__ == sorted(set(extend.__all__), key=lambda name: (not name.isupper(), name))
    for name in extend.__all__:
        assert getattr(extend, name) is not None
        assert f"`{name}`" in page, f"docs/extend.md does not mention {name}"


def test_nothing_is_there_that_is_not_listed() -> None:
    own = {name for name in vars(extend) if not name.startswith("_") and name != "annotations"}
    assert own == set(extend.__all__)


def test_a_package_brings_its_own_by_entry_point(tmp_path: Path) -> None:
    (tmp_path / "brought.py").write_text(
        "from motley.extend import Part, part\n\n\n"
        '@part("step", silent="it is an example")\n'
        "def brought() -> Part:\n"
        '    """Leaves the model as it is."""\n'
        "    return Part(step=lambda s, rnd, old, new, updates: (new, s))\n"
    )
    facts = tmp_path / "brought-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[motley]\nbrought = brought\n")
    code = "import motley; print(motley.run('digits', method='fedavg+brought', rounds=1).summary['rounds'])"
    here = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1"
