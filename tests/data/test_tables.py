"""Folders of CSV and Parquet files, one for each client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import motley
from motley.core.errors import DataError
from motley.data.tables import from_tables


def written(folder: Path, **clients: str) -> Path:
    for name, text in clients.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def table(n: int, shift: int = 0) -> str:
    rows = [f"{i + shift},{'red' if i % 2 else 'blue'},{i * 0.5},{'yes' if i % 3 else 'no'}" for i in range(n)]
    return "\n".join(["age,colour,dose,ill", *rows]) + "\n"


def test_files_become_clients_in_the_order_of_their_names(tmp_path: Path) -> None:
    data = from_tables(written(tmp_path, b=table(20, 100), a=table(10)), "ill", test=0.2, categories="pooled")
    assert data.n_clients == 2
    assert data.sizes.tolist() == [8, 16]
    assert data.dataset.n_classes == 2  # no, yes
    assert data.dataset.input_shape == (4,)  # age, blue, red, dose
    first = data.dataset.x[data.partition[0]]
    assert sorted(first[:, 0].tolist() + data.dataset.test_x[:2, 0].tolist()) == list(range(10))
    assert first[:, 1].add(first[:, 2]).eq(1).all()
    assert first[:, 2].eq(first[:, 0] % 2).all()
    assert first[:, 3].eq(first[:, 0] * 0.5).all()
    again = from_tables(tmp_path, "ill", test=0.2, categories="pooled")
    assert again.dataset.x.equal(data.dataset.x)


def test_parquet_reads_as_csv_does(tmp_path: Path) -> None:
    csv, columns = written(tmp_path, a=table(20)), {"age": range(20), "dose": [i * 0.5 for i in range(20)]}
    wanted = from_tables(csv, "age", columns=["dose"])
    (csv / "a.csv").unlink()
    parquet.write_table(pa.table({name: list(values) for name, values in columns.items()}), csv / "a.parquet")
    assert from_tables(csv, "age", columns=["dose"]).dataset.x.equal(wanted.dataset.x)


def test_gaps_are_marked_where_that_is_asked(tmp_path: Path) -> None:
    folder = written(tmp_path, a="x,c,y\n1,u,0\n,v,1\n3,,0\n4,u,1\n", b="x,c,y\n5,u,0\n6,v,1\n7,v,0\n8,u,1\n")
    data = from_tables(folder, "y", test=0.25, categories={"c": ["u", "v"]}, gaps="mark")
    rows = {tuple(row) for row in np.concatenate([data.dataset.x.numpy(), data.dataset.test_x.numpy()]).tolist()}
    assert (0.0, 1.0, 0.0, 1.0, 0.0) in rows  # x is missing: 0 and a mark; c is v
    assert (3.0, 0.0, 0.0, 0.0, 1.0) in rows  # c is missing


def test_they_are_trained_on(tmp_path: Path) -> None:
    data = from_tables(written(tmp_path, a=table(60), b=table(40)), "ill", categories={"colour": ["blue", "red"]})
    result = motley.train("logistic", data, problem="binary", scale="per_client", cohort=2, rounds=2)
    assert 0 <= result.scores["auc"] <= 1
    numbers = from_tables(tmp_path, "dose", columns=["age"], numbers=True)
    assert motley.train("logistic", numbers, problem="regression", lr=1e-6, cohort=2, rounds=1).scores["rmse"] > 0


@pytest.mark.parametrize(
    ("clients", "more", "words"),
    [
        ({}, {}, "no files ending in .csv or .parquet"),
        ({"a": table(9), "b": "age,ill\n1,no\n"}, {}, "b.csv has no column 'colour', but .*a.csv has"),
        ({"a": table(9)}, {"target": "health"}, "has no column 'health'; its columns are age, colour, dose, ill"),
        ({"a": table(9)}, {}, "Column 'colour' holds texts; name its values"),
        ({"a": table(9)}, {"categories": {"colour": ["red"]}}, "holds 'blue', which is not among its values: red"),
        ({"a": table(9)}, {"columns": ["weight"]}, "no column 'weight'; they have age"),
        ({"a": "x,y\n1,0\n,1\n"}, {"target": "y"}, "Column 'x' of .*a.csv is empty in row 2"),
        ({"a": "x,y\n1,0\n2,\n"}, {"target": "y"}, "The target 'y' of .*a.csv is empty in row 2"),
        ({"a": "x,y\nu,0\nv,1\n", "b": "x,y\n1,0\n"}, {"target": "y", "categories": "pooled"}, "numbers in .*b.csv"),
        ({"a": "x,y\n1,u\n2,v\n"}, {"target": "y", "numbers": True}, "leave out numbers=True"),
        ({"a": "x,y\n2020-01-01,0\n2020-01-02,1\n"}, {"target": "y"}, "is of type date32"),
        ({"a": table(9)}, {"categories": "pooled", "test": 1.5}, "share of test rows must lie between 0 and 1"),
        ({"a": "x,y\n1,2,3\n"}, {"target": "y"}, "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_told_by_place(
    clients: dict[str, str], more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    asked = {"target": "ill", **more}
    with pytest.raises(DataError, match=words):
        from_tables(written(tmp_path, **clients), **asked)
