"""What GANDALF is compared with: shared samples, real ones in place of generated ones, copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from motley.core.errors import InputError
from motley.data.federated import FederatedData, Partition
from motley.runtime.experiment import Given
from motley.runtime.launch import launch
from motley.runtime.phases import make_phases
from motley.runtime.recipe import Recipe, load
from motley.runtime.world import World
from tests import tiny


def recipe(**phase: Any) -> Recipe:
    base = {"model": "mlp(hidden=[5])", "rounds": 1, "clients": 2, "executor": "loop"}
    return load({**base, "phases": [{"name": "more", **phase}, {"name": "model"}]})


def world() -> World:
    """Forty samples, ten of each of four classes. One client has 8, 2 of classes 0, 1, the other 2, 8, 10, 10."""
    whole = tiny.dataset(n=40)
    by_class = [np.flatnonzero(whole.y.numpy() == c) for c in range(4)]
    first = np.concatenate([by_class[0][:8], by_class[1][:2]])
    second = np.concatenate([by_class[0][8:], by_class[1][2:], by_class[2], by_class[3]])
    return World(Given(data=FederatedData(whole, Partition.of([first, second]))))


def after(**phase: Any) -> FederatedData:
    """Clients' data after the phase."""
    found = make_phases(recipe(**phase))[0].run(world(), None, ()).data
    assert found is not None
    return found


def before() -> FederatedData:
    found = world().given.data
    assert found is not None
    return found


def test_shared_samples() -> None:
    """A fifth of 40 samples, two of each class; half of these eight to each client."""
    data = after(kind="share_data", fraction=0.2, portion=0.5)
    assert data.sizes.tolist() == [14, 34]
    new = [data.client(k).x[-4:] for k in range(2)]
    shared = torch.cat(new).unique(dim=0)
    assert len(shared) <= 8
    whole = before().dataset.x
    assert all(bool((whole == row).all(1).any()) for row in shared)
    assert max(np.bincount(data.client(0).y[-4:].numpy(), minlength=4)) <= 2


def test_real_samples_in_place_of_generated_ones() -> None:
    """The first client lacks 0, 6, 8, 8; half of that, of the other's samples; who has all others' gets no more."""
    data = after(kind="real_samples", tau=0.5)
    assert (data.labels - before().labels).tolist() == [[0, 3, 4, 4], [4, 1, 0, 0]]
    theirs = before().client(1).x
    assert all(bool((theirs == row).all(1).any()) for row in data.client(0).x[-11:])
    assert after(kind="real_samples", tau=1.0).labels[1].tolist() == [10, 10, 10, 10]


def test_minorities_are_doubled() -> None:
    """Below the mean of 2.5 samples: class 1 of the first client; below 7.5 class 0 of the second."""
    data = after(kind="copy_minorities", static="")
    assert (data.labels - before().labels).tolist() == [[0, 2, 0, 0], [2, 0, 0, 0]]
    assert torch.equal(data.client(0).x[-2:], before().client(0).x[-2:])


def test_copies_by_z_score() -> None:
    """All classes have ten samples: nothing is copied. Without two of class 3 and 4 it is: (8.5 / 6)^2 - 1 of each."""
    assert after(kind="copy_by_z_score", static="").sizes.tolist() == [10, 30]
    start = world()
    assert start.given.data is not None
    parts = [start.given.data.partition[0], start.given.data.partition[1][:-4]]
    fewer = FederatedData(start.given.data.dataset, Partition.of(parts))
    phase = make_phases(recipe(kind="copy_by_z_score", static="", alpha=2.0))[0]
    data = phase.run(World(Given(data=fewer)), None, ()).data
    assert data is not None
    copied = round(6 * ((9.0 / 6) ** 2 - 1))
    assert (data.labels - fewer.labels).tolist() == [[0, 0, 0, 0], [0, 0, 0, copied]]


@pytest.mark.parametrize("kind", ["share_data", "real_samples", "copy_minorities", "copy_by_z_score"])
def test_killed_and_resumed(kind: str, tmp_path: Any) -> None:
    import motley

    phases = [{"name": "more", "kind": kind}, {"name": "model", "rounds": 2}]
    base = load({"data": "digits", "partition": "classes", "clients": 4, "executor": "loop", "phases": phases})
    whole = launch(base)

    def kill(record: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(base, tmp_path / "run", [kill])
    assert motley.resume(tmp_path / "run").summary["model_sha256"] == whole.summary["model_sha256"]
    changed = whole.summary["model_sha256"] != launch(load(base, {"phases": phases[1:]})).summary["model_sha256"]
    assert changed == (kind in ("share_data", "real_samples")), "with two classes of full size there is nothing to copy"


def test_bad_input_gets_a_sentence() -> None:
    with pytest.raises(InputError, match=r"cannot give samples to clients with skew=rotation"):
        launch(load(recipe(kind="share_data"), {"skew": "rotation(degrees=[0, 90])"}))
    with pytest.raises(InputError, match=r"portion=2; it must be a number above 0 and up to 1"):
        launch(recipe(kind="share_data", portion=2))
    with pytest.raises(InputError, match=r"changes images, but 'tiny' holds none"):
        after(kind="copy_minorities")
