"""Random crops and mirror images: what they do to pixels, and that every executor draws the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from motley.client.augment import Augment, Crop, Mirror, make_augment
from motley.core.errors import InputError
from motley.data.datasets import load as load_dataset
from motley.runtime.experiment import prepare
from motley.runtime.launch import Run
from motley.runtime.recipe import load

X = torch.arange(1.0, 2 * 3 * 4 * 5 + 1).view(2, 3, 4, 5)  # no pixel is like another
KEY = torch.tensor(1234567, dtype=torch.int64)
FILL = torch.tensor([-1.0, -2.0, -3.0])


def shifted(image: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """The slow way: row y and column x show what stood ``down`` below and ``right`` beside."""
    channels, height, width = image.shape
    found = FILL[:, None, None].expand(channels, height, width).clone()
    for y in range(height):
        for x in range(width):
            if 0 <= y + down < height and 0 <= x + right < width:
                found[:, y, x] = image[:, y + down, x + right]
    return found


def test_a_crop_is_one_of_the_shifts_and_all_of_them_occur() -> None:
    ways = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    seen = set()
    for k in range(60):
        for image, found in zip(X, Crop(1)(X, KEY + k, FILL), strict=True):
            fitting = [way for way in ways if torch.equal(found, shifted(image, *way))]
            assert len(fitting) == 1
            seen.add(fitting[0])
    assert seen == set(ways)


def test_a_mirror_image_comes_every_other_time() -> None:
    many = X[:1].expand(4000, -1, -1, -1)
    found = Mirror()(many, KEY, FILL)
    turned = (found == many.flip(3)).flatten(1).all(1)
    assert bool((turned | (found == many).flatten(1).all(1)).all())
    assert float(turned.float().mean()) == pytest.approx(0.5, abs=0.03)


def test_steps_and_clients_see_different_images_and_the_same_ones_again() -> None:
    augment = Augment((Crop(2), Mirror()), (0.0, 0.0, 0.0))
    first = augment(X, KEY, 3)
    assert torch.equal(first, augment(X, KEY, torch.tensor(3)))
    assert not torch.equal(first, augment(X, KEY, 4))
    assert not torch.equal(first, augment(X, KEY + 1, 3))


def test_many_clients_at_once_see_what_each_sees_alone() -> None:
    augment = Augment((Crop(2), Mirror()), (0.5, 0.0, 0.0))
    keys, steps = KEY + torch.arange(3), torch.tensor([0, 5, 7])
    together = torch.func.vmap(augment, in_dims=(None, 0, 0))(X, keys, steps)
    alone = torch.stack([augment(X, key, step) for key, step in zip(keys, steps, strict=True)])
    assert torch.equal(together, alone)


def test_what_comes_in_at_the_edges_is_black_as_the_network_sees_it() -> None:
    digits = load_dataset("digits")
    made = make_augment("crop(padding=2)", digits)
    assert made is not None
    assert made.black == tuple(digits.inputs(torch.zeros_like(digits.x[:1]))[0, :, 0, 0].tolist())


def model(executor: str, **changes: Any) -> torch.Tensor:
    settings = {
        "rounds": 2,
        "cohort": 4,
        "batch_size": 7,
        "executor": executor,
        "model": "cnn_ama(channels=[3, 4], padding=2)",
    }
    return Run(prepare(load("digits", {**settings, "evaluate_every": 2, **changes}))).go().params


def test_executors_agree_and_images_are_changed() -> None:
    augment = {"augment": "crop(padding=1)+mirror", "workers": 2}
    loop = model("loop", **augment)
    assert torch.equal(loop, model("pool", **augment))
    torch.testing.assert_close(loop, model("batched", augment="crop(padding=1)+mirror"), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(loop, model("loop"))


def test_a_linear_model_is_augmented_too() -> None:
    changes = {"model": "logistic", "augment": "mirror"}
    torch.testing.assert_close(model("loop", **changes), model("batched", **changes), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model("loop", **changes), model("loop", model="logistic"))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"augment": "crop(padding=0)"}, "padding must be at least 1"),
        ({"augment": "crops"}, "crop"),
        ({"augment": "mirror", "data": "synthetic", "model": "logistic"}, "changes images, but 'synthetic"),
    ],
)
def test_bad_settings_get_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        prepare(load("digits", settings))
