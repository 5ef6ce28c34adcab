"""A reproduction as a file: a base recipe, rows and columns that change it, the paper's numbers, and its claims."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from motley.core.errors import RecipeError, UnknownNameError
from motley.runtime.recipe import Recipe, load

PAPERS = Path(__file__).parent / "papers"


class Cell(NamedTuple):
    """One place of the table."""

    row: str
    column: str

    def __str__(self) -> str:
        return f"{self.row}, {self.column}" if self.column else self.row


class Draw(NamedTuple):
    """What differs between the runs of one place: the seed and, where clients are cross-validated, the fold."""

    seed: int
    fold: int | None = None


class Claim(BaseModel):
    """Something the paper says about its numbers: an order of cells, greatest first.

    ``order`` holds names of rows (compared within each of ``columns``), of columns (within each of ``rows``), or whole
    cells ("row, column"). ``best`` names a row that beats all other rows, or ``above`` those named there. Where small
    is good, the order is still greatest first. With a ``margin`` the greater one may fall short by as much: "loses less
    than one point" is an order with margin 1. With ``by`` it must lead by as much, in the metric's unit or in percent
    of one side (``percent_of``): "needs 33 % fewer rounds" is by 33, in percent of the greater. ``somewhere``: it is
    enough that one of the orders holds ("by up to"). ``average``: the mean of all differences is judged ("on average").
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    metric: str = "accuracy"
    order: list[str] = Field(default_factory=list)
    best: str | None = None
    above: list[str] = Field(default_factory=list)
    columns: list[str] = Field(default_factory=list)
    rows: list[str] = Field(default_factory=list)
    margin: float = Field(default=0.0, ge=0.0)
    by: float = Field(default=0.0, ge=0.0)
    percent_of: Literal["greater", "less"] | None = None
    somewhere: bool = False
    average: bool = False


class Champion(BaseModel):
    """A composition that no paper tried, as a row beside a paper's methods; its method is that of a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    benchmark: str  # what the paper's place is called
    name: str  # of the row
    recipe: str


class Quick(BaseModel):
    """How the small version differs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: dict[str, Any] = Field(default_factory=dict)
    rows: list[str] = Field(default_factory=list)  # empty: all
    columns: list[str] = Field(default_factory=list)
    seeds: list[int] = Field(default_factory=lambda: [0])
    folds: list[int] = Field(default_factory=list)  # empty: all


class Reproduction(BaseModel):
    """A table or figure of a paper."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    paper: str
    note: str = ""
    seeds: list[int]
    folds: list[int] = Field(default_factory=list)  # of the recipe's split; the clients are then the same in all seeds
    metrics: list[str]
    recipe: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    columns: dict[str, dict[str, Any]] = {"": {}}
    places: dict[str, dict[str, Any]] = Field(default_factory=dict)  # "row, column" -> what is particular to it
    numbers: dict[str, dict[str, list[float]]] = Field(default_factory=dict)  # metric -> row -> one per column
    also: dict[str, str] = Field(default_factory=dict)  # metric -> the metric whose numbers it is compared with, too
    shares: dict[str, dict[str, str]] = Field(default_factory=dict)  # metric -> row ("*": all others) -> base row
    claims: list[Claim] = Field(default_factory=list)
    baseline: str | None = None  # the row that all others are compared with, in percent and by the signed-rank test
    champion: Champion | None = None
    curves: list[str] = Field(default_factory=list)  # recorded numbers the picture draws; none: the test accuracy
    quick: Quick = Field(default_factory=Quick)

    def cells(self, quick: bool = False) -> list[Cell]:
        """All places of the table, row by row."""
        rows, columns = list(self.rows), list(self.columns)
        if quick:
            rows, columns = self.quick.rows or rows, self.quick.columns or columns
        return [Cell(row, column) for row in rows for column in columns]

    def recipe_of(self, cell: Cell, draw: Draw, quick: bool = False) -> Recipe:
        """The recipe behind a place; rows win over columns, places over both, and the quick version over all."""
        content: dict[str, Any] = {**self.recipe, "name": f"{self.name}{'-quick' if quick else ''}"}
        own = self.places.get(str(cell), {})
        for changes in (self.columns[cell.column], self.rows[cell.row], own, self.quick.recipe if quick else {}):
            content.update(changes)
        content["data"] = str(content.get("data", "mnist")).replace("{seed}", str(draw.seed))
        if draw.fold is not None:
            content = {"data_seed": 0, **content, "fold": draw.fold}
        return load({**content, "seed": draw.seed})

    def draws(self, quick: bool = False, seeds: list[int] | None = None) -> list[Draw]:
        """Seeds and folds of every place: all folds of the first seed, then those of the next."""
        wanted = seeds if seeds is not None else self.quick.seeds if quick else self.seeds
        folds: list[int | None] = [*((quick and self.quick.folds) or self.folds)]
        return [Draw(seed, fold) for seed in wanted for fold in folds or [None]]

    def paper_value(self, cell: Cell, metric: str) -> float | None:
        """What the paper reports for a place; None where it does not (``nan`` in the file)."""
        if metric in self.shares:
            return None  # in a unit of the paper's own: only shares of a row compare (`paper_share`)
        return self._number(cell, metric)

    def base_of(self, cell: Cell, metric: str) -> Cell | None:
        """The place of which this one is told as a share; None for such a place itself."""
        named = self.shares.get(metric, {})
        row = named.get(cell.row, named.get("*"))
        return None if row is None or cell.row in named.values() else Cell(row, cell.column)

    def paper_share(self, cell: Cell, base: Cell, metric: str) -> float | None:
        """The paper's number of a place as a share of that of another."""
        one, other = self._number(cell, metric), self._number(base, metric)
        return None if one is None or other is None else one / other

    def _number(self, cell: Cell, metric: str) -> float | None:
        table = self.numbers.get(self.also.get(metric, metric), {})
        values = table.get(cell.row)
        value = values[list(self.columns).index(cell.column)] if values else math.nan
        return None if math.isnan(value) else value


def names() -> list[str]:
    """The reproductions that come with Motley."""
    return sorted(path.stem for path in PAPERS.glob("*.toml"))


def read(source: str) -> Reproduction:
    """A reproduction by name, or from a file of one's own."""
    path = Path(source) if source.endswith(".toml") else PAPERS / f"{source}.toml"
    if not path.is_file():
        raise UnknownNameError("reproduction", source, names())
    content = _with_champion(_content(path))
    try:
        made = Reproduction(**{"name": path.stem, **content})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise RecipeError(f"The reproduction file {path}: '{where}' is wrong: {first['msg']}.") from None
    _check(made, path)
    return made


def members(source: str) -> list[str]:
    """The reproductions behind a name: a group's (``champions`` has all ``champions-...``), or the one itself."""
    return [name for name in names() if name.startswith(f"{source}-")] if source in GROUPS else [source]


def _with_champion(content: dict[str, Any]) -> dict[str, Any]:
    """The champion as the first row, with whatever its recipe says of the method."""
    told = content.get("champion")
    if told is None:
        return content
    recipe = load(Champion(**told).recipe)
    own = {key: value for key in _METHOD if (value := getattr(recipe, key)) not in (None, {})}
    return {**content, "rows": {told["name"]: own, **content["rows"]}}


GROUPS = ("champions",)
_METHOD = ("method", "params", "protocol", "options")


def _content(path: Path, children: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The file's content; ``extends`` names another file beside it whose values hold where this one has none.

    Lists of ``rows`` or ``columns`` take some of that file's; numbers, claims and the like are about that file's own
    table and are then not taken over. Places that are left stay, ``adds`` goes on with its note.
    """
    content = _parsed(path)
    parent = content.pop("extends", None)
    if parent is None:
        return content
    if path in children:
        raise RecipeError(f"The reproduction file {path} extends itself.")
    base = _content(path.with_name(f"{parent}.toml"), (*children, path))
    recipe = {**base.get("recipe", {}), **content.get("recipe", {})}
    note = f"{content.get('note', base.get('note', ''))}{content.pop('adds', '')}"
    taken = [kind for kind in _TAKEN if isinstance(content.get(kind), list)]
    made = _part_of(base, content, taken, path) if taken else {**base, **content}
    return {**made, "note": note, "recipe": recipe}


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"There is no reproduction file {path}.") from None
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"The reproduction file {path} is not valid TOML: {error}.") from None


_TAKEN = ("rows", "columns")
_SHARED = (*_TAKEN, "title", "paper", "seeds", "folds", "metrics", "places")


def _part_of(base: dict[str, Any], content: dict[str, Any], taken: list[str], path: Path) -> dict[str, Any]:
    """Some rows or columns of another file's table, and the places that are left of it."""
    lists = {kind: _some(base.get(kind, {}), content[kind], f"{kind} that {path} extends") for kind in taken}
    made = {**{key: value for key, value in base.items() if key in _SHARED}, **content, **lists}
    kept = {str(Cell(row, column)) for row in made["rows"] for column in made.get("columns", [""])}
    places = {place: value for place, value in base.get("places", {}).items() if place in kept}
    return {**made, "places": {**places, **content.get("places", {})}}


def _some(held: dict[str, Any], wanted: list[str], what: str) -> dict[str, Any]:
    if not wanted:
        raise RecipeError(f"None of the {what} are taken; name some, or leave the list out.")
    for name in wanted:
        if name not in held:
            raise UnknownNameError(f"one of the {what}", name, held)
    return {name: held[name] for name in wanted}


def _check(made: Reproduction, path: Path) -> None:
    """Names in numbers, claims and the quick version must be rows and columns."""
    for row, values in (pair for table in made.numbers.values() for pair in table.items()):
        if len(values) != len(made.columns):
            raise RecipeError(
                f"The reproduction file {path}: row '{row}' has {len(values)} numbers for {len(made.columns)} columns."
            )
    cells = {str(cell) for cell in made.cells()}
    known = {"row": {*made.rows}, "column": {*made.columns}, "place": cells}
    known["row or column"] = known["row"] | known["column"] | cells
    for kind, name in _named(made):
        if name not in known[kind]:
            raise UnknownNameError(f"{kind} of the reproduction '{made.name}'", name, known[kind])


def _named(made: Reproduction) -> Iterator[tuple[str, str]]:
    """Every name that a file uses, and of what it should be one."""
    yield from (("row", row) for table in made.numbers.values() for row in table)
    for claim in made.claims:
        yield from _each("row", *claim.rows, *claim.above, claim.best)
        yield from _each("column", *claim.columns)
        yield from _each("row or column", *claim.order)
    for named in made.shares.values():
        yield from _each("row", *named.values(), *(name for name in named if name != "*"))
    yield from _each("place", *made.places)
    yield from _each("row", *made.quick.rows, made.baseline)
    yield from _each("column", *made.quick.columns)


def _each(kind: str, *names: str | None) -> Iterator[tuple[str, str]]:
    return ((kind, name) for name in names if name)
