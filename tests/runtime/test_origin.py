"""A run goes on only with the recipe it was begun with, and with what it was given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import motley
from motley.core.errors import DataError, InputError, StateError
from motley.methods import fedavg
from motley.parts import proximal
from motley.runtime.folders import open_run

CHANCE = np.random.default_rng(0)
Y = CHANCE.integers(0, 3, 240)
X = CHANCE.normal(size=(240, 6)) + Y[:, None]
HOMES = [(X[i::5], Y[i::5]) for i in range(5)]
PHASES = [{"name": "first", "rounds": 2}, {"name": "then", "rounds": 3}]


def stop(record: Any) -> None:
    if record.round == 2:
        raise KeyboardInterrupt


def network(inside: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(6, inside), nn.ReLU(), nn.Linear(inside, 3))


def edit(folder: Path, before: str, after: str) -> None:
    path = folder / "recipe.toml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A run of a recipe that was interrupted."""
    with pytest.raises(KeyboardInterrupt):
        motley.run("digits", rounds=4, folder=tmp_path / "run", listeners=[stop])
    return tmp_path / "run"


def given(folder: Path | None, data: Any = (X, Y), model: Any = network, **more: Any) -> motley.Result:
    settings = {"rounds": 4, "clients": 6, "cohort": 3, "lr": 0.05, **more}
    return motley.train(model, data, method=motley.compose(fedavg(), proximal(mu=0.1)), folder=folder, **settings)


@pytest.fixture
def handed(tmp_path: Path) -> Path:
    """A run on given things that was interrupted."""
    with pytest.raises(KeyboardInterrupt):
        given(tmp_path / "run", listeners=[stop])
    return tmp_path / "run"


# ------------------------------------------------------------------ the recipe
def test_an_edited_recipe_is_refused_with_what_differs(cut: Path) -> None:
    was = open_run(cut)
    edit(cut, "lr = 0.05\n", "lr = 0.2\n")
    edit(cut, "cohort = 3", "cohort = 4")
    with pytest.raises(StateError) as caught:
        motley.resume(cut)
    told = str(caught.value)
    assert "cohort was 3, is 4, lr was 0.05, is 0.2" in told
    assert was.identity in told
    assert open_run(cut).identity in told
    edit(cut, "lr = 0.2\n", "lr = 0.05\n")
    edit(cut, "cohort = 4", "cohort = 3")
    assert motley.resume(cut).summary["model_sha256"] == motley.run("digits", rounds=4).summary["model_sha256"]


def test_what_has_no_effect_may_be_edited(cut: Path) -> None:
    edit(cut, "checkpoint_seconds = 20.0", "checkpoint_seconds = 1.0")
    motley.resume(cut)


def test_an_extended_run_is_resumed_with_its_new_recipe(cut: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        motley.resume(cut, [lambda record: stop(record) if record.round != 4 else _interrupt()], rounds=6)
    assert motley.resume(cut).summary["rounds"] == 6


def test_an_edited_recipe_is_not_extended_either(cut: Path) -> None:
    edit(cut, "lr = 0.05\n", "lr = 0.2\n")
    before = contents(cut)
    with pytest.raises(StateError, match=r"lr was 0.05, is 0.2"):
        motley.resume(cut, rounds=6)
    assert contents(cut) == before


def test_a_finished_run_stays_finished_where_other_things_are_given(tmp_path: Path) -> None:
    run, method = tmp_path / "run", motley.compose(fedavg(), proximal(mu=0.1))
    given(run)
    before = contents(run)
    for things, told in (({}, "give the same again"), ({"model": network(9), "data": (X, Y)}, "The model given")):
        with pytest.raises(StateError, match=told):
            motley.resume(run, rounds=6, **{**things, **({"method": method} if things else {})})
        assert contents(run) == before
    longer = motley.resume(run, rounds=6, model=network, data=(X, Y), method=method)
    assert longer.summary["model_sha256"] == given(None, rounds=6).summary["model_sha256"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_the_recipe_of_phases_is_compared_too(tmp_path: Path) -> None:
    recipe = {"data": "digits", "clients": 6, "cohort": 2, "phases": PHASES}
    motley.run(recipe, folder=tmp_path / "run")
    edit(tmp_path / "run", "batch_size = 32", "batch_size = 16")
    with pytest.raises(StateError, match="batch_size was 32, is 16"):
        motley.resume(tmp_path / "run")


def test_a_run_from_before_this_was_noted_is_resumed(cut: Path) -> None:
    (cut / "origin.json").unlink()
    motley.resume(cut)


def test_a_damaged_note_is_told(cut: Path) -> None:
    (cut / "origin.json").write_text("{")
    with pytest.raises(StateError, match="damaged"):
        motley.resume(cut)


# ------------------------------------------------------------------ what was given
def test_given_things_are_given_again(handed: Path) -> None:
    with pytest.raises(StateError, match=r"motley\.resume\('.*', data=\.\.\., model=\.\.\., method=\.\.\.\)"):
        motley.resume(handed)
    method = motley.compose(fedavg(), proximal(mu=0.1))
    resumed = motley.resume(handed, model=network, data=(X, Y), method=method)
    assert resumed.summary["model_sha256"] == given(None).summary["model_sha256"]


def changed_data() -> dict[str, Any]:
    y = Y.copy()
    y[7] = (y[7] + 1) % 3
    return {"data": (X, y)}


CHANGES: list[tuple[Any, str]] = [
    (lambda: {"data": (X[:200], Y[:200])}, "The data given .* samples was 192, is 160"),
    (changed_data, "The data given .* digest was"),
    (lambda: {"model": network(9)}, "The model given .* parameters was 83, is 93"),
    (lambda: {"model": nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))}, "The model given .* text was"),
    (lambda: {"method": motley.compose(fedavg(), proximal(mu=0.2))}, r"The method given .*mu=0\.1.*mu=0\.2"),
    (lambda: {"fleet": motley.fleet.Fleet.ideal(6, motley.core.keys.Key.root(0))}, "begun without a fleet"),
]


@pytest.mark.parametrize(("change", "told"), CHANGES)
def test_other_things_are_refused(handed: Path, change: Any, told: str) -> None:
    method = motley.compose(fedavg(), proximal(mu=0.1))
    with pytest.raises(StateError, match=told):
        motley.resume(handed, **{"model": network, "data": (X, Y), "method": method, **change()})


def test_a_run_on_divided_data_claims_no_partition(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 2, "cohort": 2, "test": (X[:40], Y[:40])}
    motley.train(network, HOMES, folder=tmp_path / "run", **settings)
    recipe = open_run(tmp_path / "run")
    assert (recipe.data, recipe.partition, recipe.clients) == ("given", "given", 5)
    noted = json.loads((tmp_path / "run" / "origin.json").read_text())["given"]["data"]
    assert (noted["samples"], noted["shape"], noted["clients"]) == (240, [6], 5)
    motley.resume(tmp_path / "run", model=network, data=HOMES, test=settings["test"])
    with pytest.raises(DataError, match="were given in Python"):
        motley.run(tmp_path / "run" / "recipe.toml")
    with pytest.raises(DataError, match="divided among clients, so partition='dirichlet"):
        motley.train(network, HOMES, partition="dirichlet(alpha=1)", **settings)


def test_data_that_a_recipe_can_name_need_not_be_given_again(tmp_path: Path) -> None:
    whole = motley.train("mlp", "digits", rounds=3, clients=5, cohort=2, folder=tmp_path / "run")
    assert motley.resume(tmp_path / "run").summary["model_sha256"] == whole.summary["model_sha256"]


# ------------------------------------------------------------------ parts of one's own
def test_parts_of_ones_own_are_brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from motley.core.part import PARTS, Part, part

    monkeypatch.setattr(PARTS, "entries", dict(PARTS.entries))

    @part("objective")
    def pull_together(weight: float = 0.1) -> Part:
        """Pulls the logits together."""
        return Part(penalty=lambda c, me, batch, out: weight * batch.mean(out.logits.square().sum(-1)))

    with pytest.raises(KeyboardInterrupt):
        motley.run("digits", method="fedavg+pull_together", rounds=3, folder=tmp_path / "run", listeners=[stop])
    entry = PARTS.entries.pop("pull_together")
    with pytest.raises(StateError, match=r"no .* named 'pull_together'.*motley\.resume\('.*', parts=\[\.\.\.\]\)"):
        motley.resume(tmp_path / "run")
    with pytest.raises(InputError, match="'network' is no factory of parts"):
        motley.resume(tmp_path / "run", parts=[network])
    PARTS.entries["pull_together"] = entry  # as importing its module does
    assert motley.resume(tmp_path / "run", parts=[pull_together]).summary["rounds"] == 3


# ------------------------------------------------------------------ the first weights
def test_the_seed_covers_a_model_that_a_function_makes() -> None:
    torch.manual_seed(1)
    first = given(None).params
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert torch.equal(given(None).params, first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(given(None, seed=1).params, first)


def test_the_weights_of_a_module_are_the_start() -> None:
    module = network()
    began: list[torch.Tensor] = []

    class First(motley.Listener):
        def begun(self, run: Any) -> None:
            began.append(run.model.clone())

    given(None, model=module, seed=3, rounds=1, listeners=[First()])
    assert torch.equal(began[0], motley.Network(module).initial())


def test_what_makes_no_module_is_refused() -> None:
    with pytest.raises(DataError, match="of type int; give a module"):
        given(None, model=lambda: 3)
    with pytest.raises(DataError, match="the class Linear that needs arguments"):
        given(None, model=nn.Linear)
