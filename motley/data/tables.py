"""A folder of tables, a file for each client: CSV or Parquet, with typed columns, gaps and categories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from motley.core.errors import DataError
from motley.core.keys import Key
from motley.data.adapters import from_clients
from motley.data.federated import FederatedData

Categories = Literal["pooled"] | Mapping[str, Sequence[str]] | None
SHOWN = 3  # values in a sentence
GAP = -1  # place of a value that is not there


class Column(NamedTuple):
    """One column of one client: numbers with gaps as nan, or texts with gaps as None."""

    name: str
    values: NDArray[Any]

    @property
    def is_text(self) -> bool:
        return self.values.dtype.kind == "O"


Table = dict[str, Column]


def from_tables(
    folder: str | Path,
    target: str,
    *,
    test: float = 0.2,
    columns: Sequence[str] | None = None,
    categories: Categories = None,
    labels: Sequence[str] | None = None,
    gaps: Literal["refuse", "mark"] = "refuse",
    numbers: bool = False,
    seed: int = 0,
) -> FederatedData:
    """Federated data from ``*.csv`` or ``*.parquet`` files, one for each client, in the order of their names.

    target: the column to be learned: whole numbers from 0 or texts as classes, or ``numbers=True``. columns: those to
    learn from; all others where not given. test: the share of each client's rows by which models are judged.
    categories: values of columns of text, which become a column of 0 and 1 each; ``"pooled"`` takes those that occur
    anywhere, which no server of a federation could know. labels: the classes where these are texts; those that occur
    where not given. gaps: a cell that is empty is refused, or marked: 0, and 1 in a column of its own.
    """
    files = _files(Path(folder))
    tables = list(map(_read, files))
    for file, table in zip(files, tables, strict=True):
        _check_columns(file, table, files[0], tables[0], target)
    names = [name for name in (columns or tables[0]) if name != target]
    inputs = _Inputs.of(tables, names, categories, gaps == "mark")
    learned = _Target.of(tables, target, labels, numbers)
    trained, judged = [], []
    for client, (table, file) in enumerate(zip(tables, files, strict=True)):
        x, y = inputs(table, file), learned(table, file)
        held = _held(len(y), test, Key.root(seed).fold("tables", client))
        trained.append((x[~held], y[~held]))
        judged.append((x[held], y[held]))
    x, y = (np.concatenate(part) for part in zip(*judged, strict=True))
    return from_clients(trained, (x, y), classes=not numbers, name=Path(folder).name)


def _files(folder: Path) -> list[Path]:
    found = sorted(one for one in folder.glob("*") if one.suffix in (".csv", ".parquet"))
    if not found:
        raise DataError(f"There are no files ending in .csv or .parquet in {folder}.")
    return found


def _read(file: Path) -> Table:
    try:
        import pyarrow as pa
        from pyarrow import csv, parquet
    except ModuleNotFoundError:
        raise DataError("Tables are read by pyarrow: pip install 'motley-fl[data]'.") from None
    try:
        table = csv.read_csv(file) if file.suffix == ".csv" else parquet.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"The table {file} cannot be read: {str(error).splitlines()[0].rstrip('.')}.") from None
    return {name: _column(file, name, column) for name, column in zip(table.column_names, table.columns, strict=True)}


def _column(file: Path, name: str, column: Any) -> Column:
    import pyarrow.types as kinds

    kind = column.type
    if kinds.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if any(is_kind(kind) for is_kind in (kinds.is_string, kinds.is_large_string, kinds.is_null)):
        return Column(name, np.array([cell or None for cell in column.to_pylist()], dtype=object))
    if any(is_kind(kind) for is_kind in (kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_decimal)):
        return Column(name, np.array([np.nan if cell is None else float(cell) for cell in column.to_pylist()]))
    raise DataError(f"Column '{name}' of {file} is of type {kind}; tables hold numbers and texts: leave it out.")


def _check_columns(file: Path, table: Table, first_file: Path, first: Table, target: str) -> None:
    if target not in table:
        raise DataError(f"{file} has no column '{target}'; its columns are {', '.join(table)}.")
    for name in {**first, **table}:
        if name not in table or name not in first:
            without, has = (file, first_file) if name in first else (first_file, file)
            raise DataError(f"{without} has no column '{name}', but {has} has; all clients need the same columns.")


def _held(n: int, share: float, key: Key) -> NDArray[np.bool_]:
    if not 0 < share < 1:
        raise DataError(f"The share of test rows must lie between 0 and 1, not {share!r}.")
    found = np.zeros(n, bool)
    found[key.generator().permutation(n)[: round(share * n)]] = True
    return found


def _occurring(tables: Sequence[Table], name: str) -> list[str]:
    return sorted({str(value) for table in tables for value in table[name].values if value is not None})


def _places(values: NDArray[Any], known: Sequence[str], where: str) -> NDArray[np.int64]:
    """The place of each text among those that are known; `GAP` where there is none."""
    place = {value: i for i, value in enumerate(known)}
    strange = sorted({str(value) for value in values if value is not None and str(value) not in place})
    if strange:
        told = ", ".join(f"'{value}'" for value in strange[:SHOWN]) + (", ..." if len(strange) > SHOWN else "")
        raise DataError(f"{where} holds {told}, which is not among its values: {', '.join(known)}.")
    return np.array([GAP if value is None else place[str(value)] for value in values], np.int64)


def _somewhere(tables: Sequence[Table], name: str, holds: Callable[[Column], bool]) -> bool:
    """Whether something holds of a column at any client."""
    return any(holds(table[name]) for table in tables)


def _is_text(column: Column) -> bool:
    return column.is_text


def _has_gaps(column: Column) -> bool:
    return bool(_gaps(column).any())


def _known(tables: Sequence[Table], name: str, categories: Categories) -> Sequence[str]:
    """The values of a column of text."""
    if categories == "pooled":
        return _occurring(tables, name)
    found = None if categories is None or isinstance(categories, str) else categories.get(name)
    if found is None:
        raise DataError(
            f"Column '{name}' holds texts; name its values, categories={{'{name}': [...]}}, or take those that occur "
            "at any client, categories='pooled', which no server of a federation could know."
        )
    return found


class _Inputs(NamedTuple):
    """How the columns of a table become inputs, the same for all clients."""

    names: Sequence[str]
    known: Mapping[str, Sequence[str]]  # values of columns of text
    marked: frozenset[str]  # columns with gaps somewhere

    @classmethod
    def of(cls, tables: Sequence[Table], names: Sequence[str], categories: Categories, mark: bool) -> _Inputs:
        for name in names:
            if name not in tables[0]:
                raise DataError(f"The tables have no column '{name}'; they have {', '.join(tables[0])}.")
        known = {name: _known(tables, name, categories) for name in names if _somewhere(tables, name, _is_text)}
        empty = [name for name in names if mark and _somewhere(tables, name, _has_gaps)]
        return cls(names, known, frozenset(empty))

    def __call__(self, table: Table, file: Path) -> NDArray[np.float32]:
        found: list[NDArray[Any]] = []
        for name in self.names:
            found += self._columns(table[name], file)
        return np.stack(found, 1).astype(np.float32)

    def _columns(self, column: Column, file: Path) -> list[NDArray[Any]]:
        empty = _gaps(column)
        if column.name not in self.marked and empty.any():
            raise DataError(
                f"Column '{column.name}' of {file} is empty in row {int(empty.argmax()) + 1} ({int(empty.sum())} in "
                "all); fill or remove these rows, or mark them with gaps='mark'."
            )
        mark = [empty] if column.name in self.marked else []
        if column.name not in self.known:
            return [np.where(empty, 0.0, column.values), *mark]
        if not column.is_text:
            raise DataError(f"Column '{column.name}' holds numbers in {file} and texts elsewhere; make them one kind.")
        known = self.known[column.name]
        place = _places(column.values, known, f"Column '{column.name}' of {file}")
        return [*(place == i for i in range(len(known))), *mark]


def _gaps(column: Column) -> NDArray[np.bool_]:
    if column.is_text:
        return np.array([value is None for value in column.values], bool)
    return np.isnan(column.values)


class _Target(NamedTuple):
    """How the column to be learned becomes targets."""

    name: str
    known: Sequence[str] | None  # classes that are texts
    numbers: bool

    @classmethod
    def of(cls, tables: Sequence[Table], name: str, labels: Sequence[str] | None, numbers: bool) -> _Target:
        texts = _somewhere(tables, name, _is_text)
        if texts and numbers:
            raise DataError(f"Column '{name}' holds texts, so its numbers cannot be learned; leave out numbers=True.")
        return cls(name, (labels or _occurring(tables, name)) if texts else None, numbers)

    def __call__(self, table: Table, file: Path) -> NDArray[Any]:
        column = table[self.name]
        empty = _gaps(column)
        if empty.any():
            raise DataError(f"The target '{self.name}' of {file} is empty in row {int(empty.argmax()) + 1}.")
        if self.known is not None:
            return _places(column.values, self.known, f"The target '{self.name}' of {file}")
        whole = bool((column.values == column.values.round()).all())
        return column.values.astype(np.int64 if whole and not self.numbers else np.float32)
