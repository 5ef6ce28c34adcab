"""``motley run`` and ``motley resume``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motley.commands.output import IMPORTED, AsJson, Interrupted, OutputMode, Quiet, perhaps_unread, shown

if TYPE_CHECKING:
    from motley.runtime.recipe import Recipe

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Changes of the recipe: rounds=20 method=fedprox+ama seeds=5 ..."),
]


def run(
    recipe: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A recipe: its name or a TOML file.")],
    overrides: Overrides = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Run again with this changed, and report both; may be repeated."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    out: Annotated[Path, typer.Option("--out", help="Where the directory of the run is made.")] = Path("runs"),
) -> None:
    """Train a recipe. Every key of it can be changed: motley run digits rounds=20 seed=3 executor=pool."""
    from motley.runtime.experiment import prepare

    mode = OutputMode(as_json, quiet)
    given, seeds = split_seeds(overrides or [])
    variants = [given, *([*given, *shlex.split(text)] for text in compare or [])]
    planned = [load_recipes(recipe, changes, seeds) for changes in variants]
    for first, *_ in planned[1:]:
        prepare(first)  # a mistake in what is compared shows before the first run, not after it
    ends = []
    for changes, recipes in zip(variants, planned, strict=True):
        summaries = [
            _start(resolved, out, mode, _rest(recipe, changes, recipes[number + 1 :]))
            for number, resolved in enumerate(recipes)
        ]
        ends.append(summaries[0] if seeds is None else _spread(summaries, mode))
    if compare:
        ends[0] = {**ends[0], "compared": ends[1:], **_compared(ends, out, mode)}
    mode.end(ends[0])


def _rest(source: str, changes: list[str], recipes: list[Recipe]) -> str:
    """The command for the seeds that an interruption leaves undone."""
    if not recipes:
        return ""
    return shlex.join(["motley", "run", source, *changes, "seeds=" + ",".join(f"{r.seed}" for r in recipes) + ","])


def _compared(ends: list[dict[str, Any]], out: Path, mode: OutputMode) -> dict[str, Any]:
    from motley.commands.reporting import write_report

    folders = [Path(one) for end in ends for one in (end["run"] if isinstance(end["run"], list) else [end["run"]])]
    return write_report(folders, out / f"report-{folders[0].name}", mode)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of an interrupted run.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="A later end, rounds=200, or another way: executor=pool ..."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Continue an interrupted run, or extend a finished one, to exactly the model the uninterrupted run gives."""
    from motley.runtime.extension import reopened

    mode = OutputMode(as_json, quiet)
    if (folder / "deploy").is_dir():
        _serve_again(folder, overrides or [], mode)
        return
    recipe = reopened(folder, overrides or [])
    mode.end(_carry_out(recipe, folder, mode, "", resume=True))


def _serve_again(folder: Path, changes: list[str], mode: OutputMode) -> None:
    """A deployed run goes on with what its log holds."""
    from motley.commands.deployment import serve_folder
    from motley.core.errors import RecipeError
    from motley.runtime.experiment import prepare
    from motley.runtime.launch import open_run

    if changes:
        raise RecipeError("A deployed run goes on as it is; leave the changes out.")
    serve_folder(prepare(open_run(folder)), folder, mode)


def split_seeds(overrides: list[str]) -> tuple[list[str], list[int] | int | None]:
    """Takes ``seeds=5`` (five seeds, from the recipe's on) or ``seeds=1,4,9`` out of the overrides."""
    rest: list[str] = []
    found: list[int] | int | None = None
    for text in overrides:
        key, _, value = text.partition("=")
        if key.strip() != "seeds":
            rest.append(text)
            continue
        found = _seeds(value)
    return rest, found


def _seeds(text: str) -> list[int] | int:
    """``1,4,9`` or ``5``, how many."""
    from motley.core.errors import RecipeError

    try:
        numbers = [int(piece) for piece in text.split(",") if piece.strip()]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or ("," not in text and numbers[0] < 1):
        raise RecipeError(f"seeds is '{text}'; write how many (seeds=5) or which (seeds=1,4,9).")
    return numbers if "," in text else numbers[0]


def load_recipes(source: str, changes: list[str], seeds: list[int] | int | None) -> list[Recipe]:
    """The recipe once for every seed."""
    from motley.runtime.recipe import load

    first = remembering(load(source, changes))
    if seeds is None:
        return [first]
    numbers = range(first.seed, first.seed + seeds) if isinstance(seeds, int) else seeds
    return [load(first, {"seed": seed}) for seed in numbers]


def remembering(recipe: Recipe) -> Recipe:
    """The recipe with what this command was told to import, so that a resumption finds it again."""
    from motley.runtime.recipe import load

    told = [str(Path(name).resolve()) if name.endswith(".py") else name for name in IMPORTED]
    new = [name for name in told if name not in recipe.imports]
    return load(recipe, {"imports": [*recipe.imports, *new]}) if new else recipe


def _start(recipe: Recipe, out: Path, mode: OutputMode, again: str) -> dict[str, Any]:
    from motley.runtime.experiment import prepare
    from motley.runtime.launch import new_folder
    from motley.runtime.phases import check_phases
    from motley.runtime.writing import unwritable_is_told

    if recipe.phases:  # what cannot be run is refused before anything is written
        check_phases(recipe)
    else:
        prepare(recipe)
    with unwritable_is_told(out):
        folder = new_folder(recipe, out)
    return _carry_out(recipe, folder, mode, again)


def _carry_out(recipe: Recipe, folder: Path, mode: OutputMode, again: str, resume: bool = False) -> dict[str, Any]:
    """Trains with a progress bar for people; an interruption ends with the sentence how to go on."""
    from motley.report.progress import ProgressBar
    from motley.report.summary_tables import print_summary
    from motley.runtime.launch import launch

    with ProgressBar(not mode.silent) as bar:
        try:
            result = launch(recipe, folder, [bar], resume=resume)
        except KeyboardInterrupt:
            done = f"after round {bar.rounds}" + (f" of {recipe.rounds}" if not recipe.phases else "")
            told = f"Interrupted {done}" if bar.rounds else "Interrupted before the first round"
            told += f"; continue with: {shlex.join(['motley', 'resume', shown(folder)])}"
            raise Interrupted(told + (f"\nThe seeds not yet begun: {again}" if again else "")) from None
    summary: dict[str, Any] = result.summary
    if not mode.json:
        with perhaps_unread():
            print_summary(recipe, {**summary, "run": shown(folder)}, mode.silent)
    return summary


def _together(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Several seeds as one object: what names a run becomes a list, what is counted a mean."""
    from motley.report.run_data import mean_and_interval

    lists = ("run", "seed", "model_sha256")
    name = summaries[0]["headline"]
    means = {name, f"best_{name}", "loss", "virtual_time", "bytes_up", "bytes_down", "lost", "late"}
    out: dict[str, Any] = {}
    for key, value in summaries[0].items():
        values = [summary[key] for summary in summaries]
        out[key] = values if key in lists else mean_and_interval(values)[0] if key in means else value
    out["wall_s"] = round(sum(summary["wall_s"] for summary in summaries), 3)
    out[f"{name}_interval"] = mean_and_interval([summary[name] for summary in summaries])[1]
    return out


def _spread(summaries: list[dict[str, Any]], mode: OutputMode) -> dict[str, Any]:
    """Several seeds as one object, shown to people by the way."""
    from motley.report.summary_tables import print_spread

    if not mode.json:
        with perhaps_unread():
            print_spread(summaries, mode.silent)
    return _together(summaries)
