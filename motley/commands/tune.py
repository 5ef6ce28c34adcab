"""``motley tune``."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motley.commands.output import AsJson, Interrupted, OutputMode, Quiet, shown
from motley.commands.runs import remembering, split_seeds

if TYPE_CHECKING:
    from motley.runtime.recipe import Recipe
    from motley.runtime.search import Axis


def tune(
    recipe: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A recipe: its name or a TOML file.")],
    axes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=A,B,C...", help="What to try: lr=0.1,0.01 params.radfed.S=5,10; one value fixes a key."
        ),
    ] = None,
    random: Annotated[
        int | None, typer.Option("--random", metavar="N", help="Try N random combinations; allows lr=0.001..0.1.")
    ] = None,
    folds: Annotated[
        int | None, typer.Option("--folds", metavar="N", help="Average over the split's folds 0..N-1.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="N|A,B,C", help="Average over N seeds, or over these.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="A score of the problem on validation data; its headline unless told."),
    ] = None,
    at: Annotated[str, typer.Option("--at", help="Score a run by its best round, or by its last.")] = "best",
    jobs: Annotated[
        int, typer.Option("--jobs", metavar="N", min=1, help="Runs side by side, on the cores or on one GPU.")
    ] = 1,
    as_json: AsJson = False,
    quiet: Quiet = False,
    out: Annotated[Path, typer.Option("--out", help="Where the directory of the search is made.")] = Path("runs"),
) -> None:
    """Search recipe keys on validation data. Interrupted, the same command goes on."""
    from motley.runtime.recipe import load
    from motley.runtime.search import Axis
    from motley.runtime.search import tune as search_for

    mode = OutputMode(as_json, quiet)
    parsed = [Axis.parse(text) for text in axes or []]
    tried = [axis for axis in parsed if len(axis.values) != 1]
    base = remembering(load(recipe, {axis.key: axis.values[0] for axis in parsed if len(axis.values) == 1}))
    numbers = _seeds(seeds, base)
    folder = _folder(base, tried, out, [random, folds, numbers, metric, at])
    done = 0

    def teller(begun: int, total: int, settings: dict[str, Any]) -> None:
        nonlocal done
        done = begun
        if not mode.silent and not mode.json:
            told = " ".join(f"{key}={value}" for key, value in settings.items())
            typer.echo(f"[{begun + 1}/{total}] {told}")

    try:
        search = search_for(
            base,
            tried,
            folder,
            random=random,
            folds=folds,
            seeds=numbers,
            metric=metric,
            at=at,
            jobs=jobs,
            teller=teller,
        )
    except KeyboardInterrupt:
        raise Interrupted(f"Interrupted after {done} runs; the same command goes on ({shown(folder)}).") from None
    if not mode.json:
        typer.echo(search.markdown(), nl=False)
        chosen = shlex.join(f"{key}={value}" for key, value in search.chosen.items())
        typer.echo(
            f"Chosen: {chosen} (validation {search.metric} {search.best.mean:.4f}), as {shown(folder / 'chosen.toml')}"
        )
    mode.end(
        {
            "search": str(folder),
            "metric": search.metric,
            "chosen": search.chosen,
            "score": search.best.mean,
            "trials": len(search.trials),
        }
    )


def _seeds(text: str | None, base: Recipe) -> list[int] | None:
    if text is None:
        return None
    _, found = split_seeds([f"seeds={text}"])
    return list(range(base.seed, base.seed + found)) if isinstance(found, int) else found


def _folder(base: Recipe, axes: list[Axis], out: Path, rest: list[Any]) -> Path:
    """The same search has the same directory, so that it goes on."""
    content = json.dumps([base.identity, [[a.key, a.values, a.low, a.high] for a in axes], rest])
    return out / f"tune-{base.name.replace('/', '-')}-{hashlib.sha256(content.encode()).hexdigest()[:10]}"
