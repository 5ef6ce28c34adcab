"""Can prototypes be turned back into images? A decoder tries (in the spirit of ReBaFL, section 5.6).

The attacker knows the model and has images of its own (half of the test set). It trains decoders on these and applies
them to what clients send, features of single training images or prototypes, and each reconstruction is compared with
the images it came from. Two yardsticks say what can be had for nothing: the mean image of the attacker's data (chance),
and the mean image of the class, since a prototype names its class anyway.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from motley.core.errors import DataError
from motley.core.files import write_json, write_text
from motley.core.keys import Key, permutation
from motley.core.scoring import area_under_curve
from motley.data.dataset import Dataset
from motley.report.pictures import save
from motley.runtime.experiment import Experiment


@dataclass(frozen=True)
class Attack:
    """How the attacker works."""

    width: int = 512
    epochs: int = 30
    batch_size: int = 100
    lr: float = 1e-3
    group: int = 50  # images behind one of the prototypes that the attacker makes to train on
    prototypes: int = 20  # how many of the clients' prototypes are attacked


class Victim(NamedTuple):
    """A prototype as a client sends it, with what the attacker never sees: the images behind it."""

    client: int
    label: int
    prototype: Tensor  # [F]
    features: Tensor  # [n, F]
    images: Tensor  # [n, pixels]


def pixels(dataset: Dataset, x: Tensor) -> Tensor:
    """Stored images as rows of numbers in [0, 1]."""
    if dataset.kind != "image":
        raise DataError(f"Prototypes are turned back into images, but '{dataset.name}' holds none; use an image set.")
    return x.flatten(1).to(torch.float32) / float(dataset.x.max())


@torch.no_grad()
def features_of(e: Experiment, params: Tensor, x: Tensor) -> Tensor:
    return torch.cat([e.net.features(params, e.dataset.inputs(part)) for part in x.split(1024)])


def victims(e: Experiment, params: Tensor, how_many: int) -> list[Victim]:
    """Prototypes of clients' classes, in a random order of clients."""
    found: list[Victim] = []
    for client in e.key.fold("victims").generator().permutation(e.data.n_clients).tolist():
        rows = torch.from_numpy(e.data.partition[client])
        y = e.dataset.y[rows]
        for label in y.unique().tolist():
            mine = rows[y == label]
            features = features_of(e, params, e.dataset.x[mine])
            found.append(Victim(client, label, features.mean(0), features, pixels(e.dataset, e.dataset.x[mine])))
            if len(found) == how_many:
                return found
    return found


def decoder(source: Tensor, target: Tensor, attack: Attack, key: Key) -> nn.Module:
    """A network trained to give ``target`` [N, pixels] from ``source`` [N, F], by mean squared error."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key.value & (2**63 - 1))
        net = nn.Sequential(
            nn.Linear(source.shape[1], attack.width),
            nn.ReLU(),
            nn.Linear(attack.width, attack.width),
            nn.ReLU(),
            nn.Linear(attack.width, target.shape[1]),
            nn.Sigmoid(),
        )
    optimizer = torch.optim.Adam(net.parameters(), attack.lr)
    for epoch in range(attack.epochs):
        order = permutation(key.fold("order", epoch).tensor(), len(source))
        for rows in order.split(attack.batch_size):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(source[rows]), target[rows]).backward()
            optimizer.step()
    return net.eval()


def made_up_prototypes(features: Tensor, images: Tensor, y: Tensor, group: int, key: Key) -> tuple[Tensor, Tensor]:
    """Prototypes of random groups of the attacker's images of one class, and their mean images, twenty per class."""
    rng = key.generator()
    sources, targets = [], []
    for label in y.unique().tolist():
        members = torch.nonzero(y == label).flatten()
        for _ in range(20):
            rows = members[torch.from_numpy(rng.choice(len(members), min(group, len(members)), replace=False))]
            sources.append(features[rows].mean(0))
            targets.append(images[rows].mean(0))
    return torch.stack(sources), torch.stack(targets)


def error(guess: Tensor, images: Tensor) -> float:
    """Mean squared error per pixel of a guess [pixels] or [n, pixels] against images [n, pixels]."""
    return float((guess - images).square().mean())


class Findings(NamedTuple):
    """The numbers, and what the picture needs."""

    report: dict[str, Any]
    gallery: dict[str, Tensor]  # row title -> [n, pixels]
    shape: tuple[int, ...]


def invert(e: Experiment, params: Tensor, attack: Attack) -> Findings:
    """Trains the decoders on the attacker's data and measures what they recover from clients' prototypes."""
    params = params.cpu()
    half = len(e.dataset.test_y) // 2
    own_images, own_y = pixels(e.dataset, e.dataset.test_x[:half]), e.dataset.test_y[:half]
    own_features = features_of(e, params, e.dataset.test_x[:half])
    scale = own_features.std().clamp_min(1e-6)
    key = e.key.fold("inversion")
    single = decoder(own_features / scale, own_images, attack, key.fold("single"))
    made, means = made_up_prototypes(own_features, own_images, own_y, attack.group, key.fold("groups"))
    grouped = decoder(made / scale, means, attack, key.fold("grouped"))
    class_mean = {label: own_images[own_y == label].mean(0) for label in own_y.unique().tolist()}
    other_images, other_y = pixels(e.dataset, e.dataset.test_x[half:]), e.dataset.test_y[half:]
    errors: dict[str, list[float]] = {}
    gallery: dict[str, list[Tensor]] = {}
    for victim in victims(e, params, attack.prototypes):
        with torch.no_grad():
            guesses = {
                "chance (mean image)": own_images.mean(0),
                "class mean (label alone)": class_mean[victim.label],
                "prototype, decoder of single features": single(victim.prototype / scale),
                "prototype, decoder of prototypes": grouped(victim.prototype / scale),
                "single features": single(victim.features / scale),
            }
        for name, guess in guesses.items():
            errors.setdefault(name, []).append(error(guess, victim.images))
            gallery.setdefault(name, []).append(guess if guess.ndim == 1 else guess[0])
        gallery.setdefault("a training image", []).append(victim.images[0])
        outsiders = other_images[other_y == victim.label]
        for name in ("prototype, decoder of single features", "class mean (label alone)"):
            errors.setdefault(f"members: {name}", []).append(membership(guesses[name], victim.images, outsiders))
    return Findings(_report(e, attack, errors), {k: torch.stack(v) for k, v in gallery.items()}, e.dataset.input_shape)


def membership(guess: Tensor, inside: Tensor, outside: Tensor) -> float:
    """Area under the curve of telling a prototype's images from others of the class by their distance to a guess."""
    images = torch.cat([inside, outside])
    y = torch.cat([torch.ones(len(inside)), torch.zeros(len(outside))]).to(torch.int64)
    area = area_under_curve(-(images - guess).square().mean(1), y)
    assert area is not None
    return area


def _report(e: Experiment, attack: Attack, errors: dict[str, list[float]]) -> dict[str, Any]:
    mean = {name: statistics.fmean(values) for name, values in errors.items()}
    chance = mean["chance (mean image)"]
    rows = [
        {"what": name, "error": round(value, 5), "of_chance": round(value / chance, 4)}
        for name, value in mean.items()
        if not name.startswith("members: ")
    ]
    area = {name.removeprefix("members: "): round(value, 4) for name, value in mean.items() if "members: " in name}
    return {
        "data": e.recipe.data,
        "method": e.recipe.method,
        "rounds": e.recipe.rounds,
        "seed": e.recipe.seed,
        "prototypes": len(errors["single features"]),
        "images_per_prototype": round(float(e.data.labels[e.data.labels > 0].mean()), 1),
        "decoder": {"width": attack.width, "epochs": attack.epochs, "group": attack.group},
        "rows": rows,
        "member_auc": area,
    }


def write(found: Findings, folder: Path) -> list[Path]:
    """The findings as JSON, markdown and a picture."""
    report = found.report
    lines = [
        "# Turning prototypes back into images",
        "",
        f"{report['method']} on {report['data']}, {report['rounds']} rounds, seed {report['seed']}; "
        f"{report['prototypes']} prototypes of clients, {report['images_per_prototype']:g} images behind each. "
        "Decoders were trained on half of the test set and applied to what clients send. Errors are mean squared "
        "errors per pixel against the training images behind each prototype.",
        "",
        "| reconstruction from | error | share of chance |",
        "| --- | ---: | ---: |",
        *(f"| {row['what']} | {row['error']:.4f} | {row['of_chance']:.0%} |" for row in report["rows"]),
        "",
        "Telling a prototype's images from others of the same class by their distance to the reconstruction (area "
        "under the curve, 0.5 is guessing): "
        + ", ".join(f"{name}: {value:.3f}" for name, value in report["member_auc"].items())
        + ".",
        "",
        "![reconstructions](prototypes.png)",
        "",
    ]
    write_text(folder / "README.md", "\n".join(lines))
    write_json(folder / "prototypes.json", report)
    _picture(found, folder / "prototypes.png")
    return [folder / name for name in ("README.md", "prototypes.json", "prototypes.png")]


def _picture(found: Findings, path: Path, columns: int = 10) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    order = ["a training image", *(name for name in found.gallery if name != "a training image")]
    count = min(columns, len(found.gallery[order[0]]))
    figure, axes = plt.subplots(len(order), count, figsize=(0.9 * count + 2.6, 0.95 * len(order)), squeeze=False)
    for i, name in enumerate(order):
        for j in range(count):
            image = found.gallery[name][j].reshape(found.shape).permute(1, 2, 0).squeeze(-1).numpy()
            axes[i][j].imshow(image, cmap="gray", vmin=0, vmax=1)
            axes[i][j].set(xticks=[], yticks=[])
        axes[i][0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    figure.subplots_adjust(left=0.32, right=0.99, top=0.99, bottom=0.01, wspace=0.05, hspace=0.05)
    save(figure, path, 110)
