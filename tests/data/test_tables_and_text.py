"""EMNIST, Covertype, eICU, Shakespeare and Sent140: shapes, splits, and nothing that leaks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from motley.core.errors import DataError
from motley.core.keys import Key
from motley.data.datasets import load
from motley.data.downloads import find
from motley.data.partitioning import make_partition
from motley.data.sources.images import _emnist_labels
from motley.data.sources.tabular import eicu_table
from motley.data.sources.text import ALPHABET, encode, words_of


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find(name) is None, reason=f"needs {name}")


@needs("emnist_byclass_test.npz")
@pytest.mark.parametrize(
    ("classes", "n"), [("byclass", 62), ("letters", 26), ("a_to_j", 10), ("digits", 10), ("lower", 26)]
)
def test_emnist(classes: str, n: int) -> None:
    data = load(f"emnist(classes={classes})")
    assert data.n_classes == n
    assert data.input_shape == (1, 28, 28)
    assert len(data.y.unique()) == n
    share = len(data.test_y) / (len(data) + len(data.test_y))
    assert share == pytest.approx(0.2, abs=0.001)
    with pytest.raises(DataError, match="'greek'; it has: byclass"):
        load("emnist(classes=greek)")


@needs("emnist_byclass_test.npz")
def test_emnist_with_alike_letters_merged() -> None:
    """47 classes, as "Balanced": 10 digits, 26 letters, and a b d e f g h n q r t."""
    data = load("emnist(classes=merged, per_class=200)")
    assert data.n_classes == len(data.y.unique()) == 47
    assert (torch.bincount(data.y) + torch.bincount(data.test_y)).max() == 200
    labels, n = _emnist_labels("merged")
    assert n == 47
    assert labels[10 + 2] == labels[36 + 2] == 12, "C and c"
    assert [int(labels[36 + "abcdefghijklmnopqrstuvwxyz".index(c)]) for c in "abdefghnqrt"] == list(range(36, 47))
    assert torch.equal(data.y, load("emnist(classes=merged, per_class=200)").y)
    with pytest.raises(DataError, match="per_class=-1"):
        load("emnist(classes=merged, per_class=-1)")


@needs("covertype.npz")
def test_covertype() -> None:
    data = load("covertype")
    assert len(data) + len(data.test_y) == 581_012
    x = data.inputs(data.x)
    assert x[:, :10].mean(0).abs().max() < 1e-3
    assert set(x[:1000, 10:].unique().tolist()) == {0.0, 1.0}
    assert make_partition("natural(group=area)", data, None, Key.root(0)).n_clients == 4


@needs("eicu_demo/patient.csv.gz")
def test_eicu_has_no_outcome_among_its_inputs() -> None:
    table = eicu_table()
    outcomes = ("died", "discharge", "actual", "los", "predicted", "mortality", "status")
    assert not [column for column in table.columns if any(word in column for word in outcomes)]
    assert (len(table.y), int(table.y.sum())) == (2179, 196)
    data = load("eicu")
    assert torch.isfinite(data.inputs(data.test_x)).all()
    assert data.inputs(data.x).mean(0).abs().max() < 1e-3
    assert set(data.groups) == {"hospital", "region", "beds", "region_beds"}
    assert make_partition("natural(group=hospital, min_size=10)", data, None, Key.root(0)).n_clients >= 5


def test_eicu_learns_but_not_perfectly() -> None:
    """An outcome in disguise would show as a perfect classifier."""
    if find("eicu_demo/patient.csv.gz") is None:
        pytest.skip("needs eicu_demo")
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    data = load("eicu")
    model = LogisticRegression(C=0.01, max_iter=1000).fit(data.inputs(data.x).numpy(), data.y.numpy())
    auc = roc_auc_score(data.test_y.numpy(), model.decision_function(data.inputs(data.test_x).numpy()))
    assert 0.65 < auc < 0.95


@pytest.fixture
def plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two long roles and a short one."""
    text = "".join(chr(97 + i % 26) for i in range(400))
    rows = [{"play": "a", "role": "X", "text": text[i : i + 100]} for i in range(0, 400, 100)]
    rows += [{"play": "b", "role": "X", "text": text[::-1]}, {"play": "b", "role": "Y", "text": "To be\nor not"}]
    with gzip.open(tmp_path / "shakespeare_roles.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    monkeypatch.setenv("MOTLEY_DATA", str(tmp_path))
    return tmp_path


def test_shakespeare_windows(plays: Path) -> None:
    data = load("shakespeare(length=20, min_size=10)")
    assert data.input_shape == (20,)
    assert data.n_classes == data.vocabulary == len(ALPHABET) == 80
    assert data.inputs(data.x).dtype == torch.int64
    assert data.groups["role"].unique().tolist() == [0, 1]
    assert "".join(ALPHABET[i] for i in data.x[0]) == "abcdefghijklmnopqrst"
    assert ALPHABET[data.y[0]] == "u"
    assert torch.equal(data.x[1, :-1], data.x[0, 1:])
    assert int(data.y[0]) == int(data.x[1, -1])
    own = data.groups["role"] == 1
    thin = load("shakespeare(length=20, min_size=10, stride=3)")
    assert torch.equal(thin.x[thin.groups["role"] == 1], data.x[own][::3])
    with pytest.raises(DataError, match="lower min_size"):
        load("shakespeare(min_size=100000)")


def test_letters_outside_the_alphabet_are_spaces() -> None:
    assert "".join(ALPHABET[i] for i in encode("Zoé — ok}")) == "Zo    ok}"


@needs("shakespeare_roles.jsonl.gz")
def test_shakespeare_whole() -> None:
    data = load("shakespeare(stride=20)")
    assert len(data.groups["role"].unique()) > 400
    assert int(data.x.max()) < 80


def test_words() -> None:
    assert words_of("@you LOVE it! http://x.y :)") == ["<user>", "love", "it", "!", "<link>", ":)"]


@needs("sentiment140_slice.parquet")
def test_sent140() -> None:
    pytest.importorskip("pyarrow")
    data = load("sent140(vocabulary=500)")
    assert data.input_shape == (25,)
    assert data.vocabulary == 500
    assert int(data.x.max()) == 499
    assert int(data.x[:, -1].min()) >= 0
    padded = data.x[data.x[:, 0] == 0]
    assert len(padded) > 1000
    first = (padded != 0).int().argmax(1)
    rows = torch.arange(len(padded))
    filled = torch.arange(25) >= first[:, None]
    assert ((padded != 0) == filled)[rows][(padded != 0).any(1)].all()
    assert np.isin([0, 1], data.y.numpy()).all()


def test_missing_files_give_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTLEY_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("eicu", "shakespeare", "sent140"):
        with pytest.raises(DataError, match=f"'{name}' needs the file"):
            load(name)


def test_covertype_of_two_classes_as_radfed_takes_it() -> None:
    if find("covertype.npz") is None:
        pytest.skip("needs the file")
    data = load("covertype(binary=true)")
    y = torch.cat([data.y, data.test_y])
    assert torch.bincount(y).tolist() == [211_560, 280_440]
    assert data.input_shape == (49,)
    x = data.inputs(data.x)
    assert x[:, :10].mean(0).abs().max() < 0.01
    assert set(x[:, 10:].unique().tolist()) == {0.0, 1.0}


def test_some_roles_of_shakespeare_at_random() -> None:
    if find("shakespeare_roles.jsonl.gz") is None:
        pytest.skip("needs the file")
    some, other = (load(f"shakespeare(stride=200, min_size=1, roles=20, seed={seed})") for seed in (0, 1))
    assert len(some.groups["role"].unique()) == 20
    assert len(some) != len(other)
    with pytest.raises(DataError, match="not roles=100000"):
        load("shakespeare(stride=200, roles=100000)")
