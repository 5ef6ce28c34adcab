"""The command ``motley privacy``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from motley.core.errors import InputError
from motley.reproduce.inversion import Attack, invert, write
from motley.runtime.experiment import prepare
from motley.runtime.launch import Run
from motley.runtime.recipe import load
from motley.runtime.records import environment

app = typer.Typer(help="What could be learned from the things clients send.", no_args_is_help=True)

DEFAULT = {
    "name": "privacy-prototypes",
    "data": "fashion_mnist",
    "partition": "drawn(per_client=2, samples=1000)",
    "fleet": "bernoulli(p=0.5)",
    "model": "cnn_rebafl",
    "method": "rebafl",
    "clients": 20,
    "cohort": 20,
    "rounds": 20,
    "epochs": 1,
    "batch_size": 50,
    "lr": 0.05,
    "optimizer": "sgd(momentum=0.5, weight_decay=5e-4)",
    "evaluate_every": 20,
}


@app.callback()
def _root() -> None:
    pass


@app.command("prototypes")
def prototypes(
    recipe: Annotated[str, typer.Argument(help="Recipe to train first; none: ReBaFL on Fashion-MNIST, small.")] = "",
    changes: Annotated[list[str] | None, typer.Argument(help="Changes of the recipe, key=value.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of the attacker's decoders.")] = 30,
    attacked: Annotated[int, typer.Option(min=1, help="How many prototypes are attacked.")] = 20,
    out: Annotated[Path, typer.Option(help="Where to write table and picture.")] = Path("results/papers/prototypes"),
    as_json: Annotated[bool, typer.Option("--json", help="For machines: JSON on the last line of stdout.")] = False,
) -> None:
    """Train decoders that turn class prototypes back into images; compare with chance and with single features."""
    given = list(changes or [])
    if "=" in recipe:
        recipe, given = "", [recipe, *given]
    resolved = load(recipe or DEFAULT, given)
    experiment = prepare(resolved)
    if not any(part.name == "prototype_augmentation" for part in experiment.method.parts):
        raise InputError(
            f"The method '{resolved.method}' sends no prototypes; add prototype_augmentation, or use rebafl."
        )
    params = Run(experiment, None).go().params
    found = invert(experiment, params, Attack(epochs=epochs, prototypes=attacked))
    found.report["environment"] = {**environment(), "command": " ".join(["motley", *sys.argv[1:]])}
    files = write(found, out)
    if as_json:
        print(json.dumps(found.report))
    else:
        print(files[0].read_text())
