"""The phases of GANDALF together: generators, samples, the model; killed and resumed; what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import motley
from motley.core.errors import InputError
from motley.core.keys import Key
from motley.core.types import Data
from motley.data.balance import wanted
from motley.data.datasets import load as load_dataset
from motley.nets.gan import GAN
from motley.nets.zoo import build
from motley.runtime.experiment import Given
from motley.runtime.gan_phase import Generators, bounds
from motley.runtime.generate_phase import stored, with_samples
from motley.runtime.generation import Made, Plan
from motley.runtime.launch import launch
from motley.runtime.phases import World, make_phases
from motley.runtime.recipe import Recipe, load
from tests import tiny
from tests.runtime.killable import facts

GAN_TABLE: dict[str, Any] = {
    "name": "gan",
    "kind": "gan",
    "network": "gan_mlp(hidden=[12], latent=4)",
    "groups": 2,
    "by": "random",
    "batch_size": 16,
    "critic_rate": 1e-3,
    "rounds": 3,
}
GENERATE: dict[str, Any] = {"name": "samples", "kind": "generate", "classifier": "labels"}


def recipe(gan: Any = None, generate: Any = None, **changes: Any) -> Recipe:
    phases = [
        {**GAN_TABLE, **(gan or {})},
        {"name": "labels", "rounds": 2},
        {**GENERATE, **(generate or {})},
        {"name": "model", "rounds": 3, "protocol": "mediators", "options": {"groups": 2}},
    ]
    base = {
        "name": "gandalf",
        "data": "digits",
        "partition": "classes(per_client=2)",
        "clients": 6,
        "cohort": 6,
        "model": "mlp(hidden=[12])",
        "executor": "loop",
        "checkpoint_seconds": 0.0,
        "phases": phases,
    }
    return load({**base, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[motley.Result, Path]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    return launch(recipe(), folder), folder


def samples(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = safetensors.torch.load_file(folder / "3-samples" / "samples.safetensors")
    return found


# ------------------------------------------------------------------ from beginning to end
def test_everything_is_kept(finished: tuple[motley.Result, Path]) -> None:
    result, folder = finished
    for name in ("1-gan/generators.safetensors", "3-samples/samples.png", "3-samples/summary.json", "summary.json"):
        assert (folder / name).is_file()
    told = result.summary["phases"]["samples"]
    assert told["kept"] + told["static"] == sum(told["samples_per_client"]) == len(samples(folder)["y"])
    assert told["bytes_stored"] == 64 * sum(told["samples_per_client"])
    assert told["bytes_down"] == 6 * 4 * (4 * 12 + 12 + 12 * 64 + 64)


def test_the_model_trains_on_what_was_generated(finished: tuple[motley.Result, Path]) -> None:
    """Every client is nearer to balance, nobody has more of a class than was wanted."""
    _, folder = finished
    made = samples(folder)
    before = _labels()
    for k, own in enumerate(before):
        goal = wanted(np.where(before.sum(0) > 0, own.max() - own, 0.0).astype(float), 0.5)
        got = np.bincount(made["y"][made["client"] == k].numpy(), minlength=10)
        assert (got <= goal).all()
    plain = motley.run(
        {**recipe().model_dump(), "phases": [], "rounds": 3}, protocol="mediators", options={"groups": 2}
    )
    assert plain.summary["model_sha256"] != finished[0].summary["model_sha256"]


def _labels() -> np.ndarray:
    from motley.runtime.experiment import prepare

    return prepare(load({**recipe().model_dump(), "phases": []})).data.labels


def test_one_clock_counts_all_phases(finished: tuple[motley.Result, Path]) -> None:
    phases = finished[0].summary["phases"]
    gan, labels, model = (phases[name]["virtual_time"] for name in ("gan", "labels", "model"))
    assert gan < labels < labels + phases["samples"]["seconds"] < model
    assert phases["samples"]["seconds"] > 0


@pytest.mark.parametrize("after", [2, 4, 5, 7])
def test_killed_in_each_phase_and_resumed(after: int, finished: tuple[motley.Result, Path], tmp_path: Path) -> None:
    """Three rounds of generators, two of the classifier, then samples, three rounds of the model."""
    seen = 0

    def kill(record: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(recipe(), tmp_path / "run", [kill])
    if after == 5:  # between the phases, with the samples half written: no summary yet
        assert not (tmp_path / "run" / "3-samples").exists()
    resumed = motley.resume(tmp_path / "run")
    expected, folder = finished
    assert resumed.summary["model_sha256"] == expected.summary["model_sha256"]
    assert facts(resumed.records) == facts(expected.records)
    ours, theirs = samples(tmp_path / "run"), samples(folder)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_resumed_after_its_end_and_in_memory_it_is_the_same(finished: tuple[motley.Result, Path]) -> None:
    expected, folder = finished
    assert motley.resume(folder).summary["model_sha256"] == expected.summary["model_sha256"]
    assert launch(recipe()).summary["model_sha256"] == expected.summary["model_sha256"]


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "conditional": ({"conditional": True}, {"labels": "conditional"}),
    "labels of the group": ({}, {"labels": "group"}),
    "Private FL GAN": ({"groups": 1}, {}),
    "SDA-FL": ({"groups": 6}, {"each": 3}),
    "FedDPGAN": ({"shared": "fedavg", "sigma": 1e-3}, {}),
    "without static augmentation": ({}, {"static": ""}),
    "noise": ({"sigma": 2.0, "clip": 0.1, "histogram_noise": 1.0}, {"tau": 1.0}),
    "flat losses": ({"window": 1, "threshold": 50.0, "rounds": 9}, {}),
}


@pytest.mark.parametrize("name", list(VARIANTS))
def test_variants(name: str, tmp_path: Path) -> None:
    gan, generate = VARIANTS[name]
    phases = recipe(gan, generate).model_dump()["phases"]
    result = launch(load(recipe(gan, generate), {"phases": phases}), tmp_path / "run")
    told = result.summary["phases"]
    generators = safetensors.torch.load_file(tmp_path / "run" / "1-gan" / "generators.safetensors")
    wanted_models = {"Private FL GAN": 1, "SDA-FL": 6, "FedDPGAN": 1}.get(name, 2)
    assert told["samples"]["generators"] == wanted_models
    assert len({key.split(".")[0] for key in generators}) == wanted_models
    if name == "without static augmentation":
        assert told["samples"]["static"] == 0
    if name == "noise":
        assert told["gan"]["privacy"]["guarantee"] is True
        assert told["gan"]["privacy"]["histogram_epsilon_per_sample"] > 0
    if name == "flat losses":
        assert told["gan"]["rounds"] == 2


def test_what_generates_goes_with_other_remedies() -> None:
    """ReBaFL's loss, AMA's mixing and FedSAE's workloads on the balanced data."""
    for method in ("rebafl", "ama", "fedsae_ira"):
        phases = [*recipe().phases[:3], {"name": "model", "rounds": 2, "method": method, "fleet": "fedsae"}]
        result = launch(recipe(phases=phases))
        assert torch.isfinite(result.params).all()


def test_the_recipe_for_digits_runs(tmp_path: Path) -> None:
    """With a round of each phase in place of 60 and 20."""
    whole = load("gandalf/digits")
    phases = [{**whole.phases[0], "rounds": 1, "generator_steps": 1}, whole.phases[1], {**whole.phases[2], "rounds": 1}]
    result = launch(load(whole, {"phases": phases}), tmp_path / "run")
    assert list(result.summary["phases"]) == ["gan", "samples", "model"]
    assert (tmp_path / "run" / "2-samples" / "samples.png").is_file()


# ------------------------------------------------------------------ samples by hand
def plan(**changes: Any) -> Plan:
    net = build("gan_mlp(hidden=[6], latent=3)", (9,), 4, 0, Key.root(1))
    counts = np.array([[0.0, 9, 0, 0], [0, 0, 5, 0]])
    made = Generators(net, torch.stack([net.initial(), net.initial() * 2]), counts, [[0], [1]])
    base: dict[str, Any] = {"each": 2, "tau": 1.0, "labels": "classifier", "label": None, "static": None, "limit": 2.0}
    return Plan(made, key=Key.root(0), **{**base, **changes})


def test_a_client_gets_what_it_lacks_and_surplus_is_deleted() -> None:
    """Four of class 0 and two of class 1: B = [2, 4]. A classifier that calls every third sample 1 and others 2 leaves
    two of class 1 and all four of class 2."""
    own = Data(torch.randn(6, 9), torch.tensor([0, 0, 0, 0, 1, 1]))
    counts, known = np.array([4.0, 2, 0, 0]), np.array([True, True, True, False])

    def label(x: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(len(x)) % 3 == 0, 1, 2)

    found = plan(label=label).for_client(0, own, counts, known)
    assert found.generated == 6
    assert sorted(found.y.tolist()) == [1, 1, 2, 2, 2]
    assert set(found.origin.tolist()) == {0, 1}


class Same:
    """Changes nothing, so that what was copied can be seen."""

    def __call__(self, x: torch.Tensor, key: torch.Tensor, step: int) -> torch.Tensor:
        return x


def test_gaps_are_filled_from_ones_own_samples() -> None:
    """All generated samples are called 3, which is not wanted: class 1 has two to copy and lacks two, class 2 none."""
    own = Data(torch.arange(54.0).reshape(6, 9), torch.tensor([0, 0, 0, 0, 1, 1]))
    counts, known = np.array([4.0, 2, 0, 0]), np.array([True, True, True, False])
    all_three = {"label": lambda x: torch.full((len(x),), 3), "static": Same()}
    found = plan(**all_three).for_client(0, own, counts, known)
    assert found.y.tolist() == [1, 1]
    assert found.origin.tolist() == [-1, -1]
    assert sorted(found.x[:, 0].tolist()) == [36.0, 45.0]


def test_inputs_come_back_as_they_were_stored() -> None:
    for name in ("digits", "synthetic"):
        data = load_dataset(name)
        back = stored(data, data.inputs(data.x[:50]))
        torch.testing.assert_close(back, data.x[:50])
    low, high = bounds(load_dataset("digits"))
    digits = load_dataset("digits")
    assert low == pytest.approx(float(digits.inputs(digits.x).min()), abs=1e-6)
    assert high == pytest.approx(float(digits.inputs(digits.x).max()), abs=1e-6)


def test_data_with_samples_by_hand() -> None:
    data = tiny.data()
    one = Made(torch.ones(2, 9), torch.tensor([3, 1]), torch.zeros(2, dtype=torch.int64), 2)
    none = Made(torch.zeros(0, 9), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 0)
    more = with_samples(data, [none, one, *[none] * 4])
    assert more.sizes.tolist() == [7, 18, 5, 21, 10, 13]
    assert torch.equal(more.client(1).x[-2:], torch.ones(2, 9))
    assert more.client(1).y[-2:].tolist() == [3, 1]
    assert torch.equal(more.client(3).x, data.client(3).x)


# ------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    ("gan", "generate", "told"),
    [
        ({"groups": 7}, {}, r"wants 7 groups of 6 clients; set groups to less"),
        ({}, {"each": 3}, r"gives each client 3 generators, but there are 2; set each to no more"),
        ({}, {"of": "labels"}, r"generates with those of the phase 'labels', which is no earlier phase of kind gan"),
        ({}, {"classifier": "model"}, r"labels by a classifier, but 'model' is no earlier phase"),
        ({"conditional": True}, {}, r"labels=classifier, but the generators of 'gan' have conditional=true"),
        ({"network": "gan_conv"}, {}, r"take gan_mlp for other sizes"),
        ({"rounds": 0}, {}, r"rounds=0; it must be a whole number of at least 1"),
        ({}, {"tau": 2}, r"tau=2; it must be a number above 0 and up to 1"),
    ],
)
def test_what_cannot_be_is_told_first(gan: Any, generate: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        launch(recipe(gan, generate), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_skew_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot generate for clients with skew=rotation"):
        launch(recipe(skew="rotation(degrees=[0, 90])"), tmp_path / "run")


def test_a_class_that_nobody_has_is_told() -> None:
    digits = load_dataset("digits")
    keep = digits.y != 3
    less = replace(digits, x=digits.x[keep], y=digits.y[keep])
    from motley.runtime.experiment import share_out

    given = Given(data=share_out(recipe(), less))
    with pytest.warns(UserWarning, match="No client has samples of class 3, so none are generated for it"):
        launch(recipe(), given=given)


def test_generators_that_collapsed_are_told() -> None:
    generate = make_phases(recipe())[2]
    net = build("gan_mlp(hidden=[6], latent=3)", (1, 8, 8), 10, 0, Key.root(1))
    assert isinstance(net.module, GAN)
    dead = Generators(net, torch.zeros(2, net.size), np.ones((2, 10)), [[0], [1]])
    mlp = build("mlp(hidden=[12])", (1, 8, 8), 10, 0, Key.root(1))
    models = {"labels": mlp.layout.unflatten(mlp.initial())}
    with pytest.raises(InputError, match=r"Generator 0 of the phase 'gan' collapsed: .* let it train longer"):
        generate.run(World(made={"gan": dead}, models=models), None, ())


def test_the_summary_is_json(finished: tuple[motley.Result, Path]) -> None:
    assert json.loads((finished[1] / "summary.json").read_text())["phases"]["samples"]["generators"] == 2
