"""Tables: Covertype and the eICU demo."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from motley.core.errors import DataError
from motley.core.keys import Key
from motley.data.dataset import Dataset, Scaling
from motley.data.downloads import fetch, find, need, read_npz
from motley.data.split import stratified

Floats = NDArray[np.float32]
TEST_FRACTION = 0.2


def covertype(binary: bool = False) -> Dataset:
    """UCI Covertype: 581,012 patches of forest, 54 columns, 7 classes; group 'area'; a fifth is the test set.

    The ten numeric columns are standardised with the training part's statistics, indicators stay 0/1. ``binary``: as in
    RADFed's code, 211,560 rows of class 1 and 280,440 of class 2 (drawn once) and the 49 columns that vary in these.
    """
    path = find("covertype.npz")
    if path is not None:
        table, label = read_npz(path, "X", "y")
        x, y = np.ascontiguousarray(table).astype(np.int16), label.astype(np.int64) - 1
    else:
        x, y = _covertype_source()
    area, n_classes = x[:, 10:14].argmax(1), 7
    if binary:
        kept = _first_two_classes(y)
        x, y, area, n_classes = x[kept], y[kept], area[kept], 2
        x = np.ascontiguousarray(x[:, x.min(0) < x.max(0)])
    test = stratified(y, TEST_FRACTION, Key.root(0).fold("covertype").generator())
    mean, std = np.zeros(x.shape[1], np.float32), np.ones(x.shape[1], np.float32)
    mean[:10], std[:10] = x[~test, :10].mean(0), x[~test, :10].std(0)
    scaling = Scaling(1.0, torch.from_numpy(mean), torch.from_numpy(std))
    t = torch.from_numpy
    return Dataset(
        "covertype",
        t(x[~test]),
        t(y[~test]),
        t(x[test]),
        t(y[test]),
        n_classes,
        scaling,
        groups={"area": t(area[~test])},
        test_groups={"area": t(area[test])},
    )


BINARY_ROWS = (211_560, 280_440)


def _first_two_classes(y: NDArray[np.int64]) -> NDArray[np.int64]:
    """As many rows of either class as 100 clients of 4,920 hold, in their order."""
    chosen = []
    for c, n in enumerate(BINARY_ROWS):
        members = np.flatnonzero(y == c)
        if len(members) < n:
            raise DataError(f"This Covertype has {len(members)} rows of class {c + 1}; binary=true takes {n}.")
        chosen.append(Key.root(0).fold("covertype", "binary", c).generator().choice(members, n, replace=False))
    return np.sort(np.concatenate(chosen))


def _covertype_source() -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    url = "https://ndownloader.figshare.com/files/5976039"
    sha = "sha256:614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771"
    with gzip.open(fetch("covertype/covtype.data.gz", url, sha, "covertype"), "rt") as file:
        rows = np.loadtxt(file, np.int16, delimiter=",")
    return rows[:, :54], rows[:, 54].astype(np.int64) - 1


# Inputs are listed one by one, so that an outcome column can never slip in. -1 means missing.
EICU_PHYSIOLOGY = (
    "intubated vent dialysis eyes motor verbal meds urine wbc temperature respiratoryrate sodium heartrate meanbp ph "
    "hematocrit creatinine albumin pao2 pco2 bun glucose bilirubin fio2"
)
EICU_HISTORY = (
    "gender age thrombolytics aids hepaticfailure lymphoma metastaticcancer leukemia immunosuppression cirrhosis "
    "electivesurgery activetx readmit ima midur ventday1 oobventday1 oobintubday1 diabetes ejectfx visitnumber"
)
RARELY_MISSING = 0.05


class EicuTable(NamedTuple):
    """The demo as arrays, before imputation; missing values are NaN."""

    x: Floats
    y: NDArray[np.int64]
    columns: list[str]
    groups: dict[str, NDArray[np.int64]]


def eicu() -> Dataset:
    """eICU demo: death in hospital from first-day APACHE variables, 2 classes; groups 'hospital', 'region', 'beds',
    'region_beds'.

    No outcome column is among the inputs. Missing values become the mean of the training part, columns with more than
    5 % missing there get a 0/1 column that says so, and all are standardised with the training part's statistics. A
    fifth is the test set.
    """
    table = eicu_table()
    test = stratified(table.y, TEST_FRACTION, Key.root(0).fold("eicu").generator())
    x = _impute(table.x, ~test)
    known = x[~test].astype(np.float64)
    std = known.std(0)
    mean, std = known.mean(0).astype(np.float32), np.where(std > 1e-4, std, 1.0).astype(np.float32)
    scaling = Scaling(1.0, torch.from_numpy(mean), torch.from_numpy(std))
    t = torch.from_numpy
    return Dataset(
        "eicu",
        t(x[~test]),
        t(table.y[~test]),
        t(x[test]),
        t(table.y[test]),
        2,
        scaling,
        groups={name: t(ids[~test]) for name, ids in table.groups.items()},
        test_groups={name: t(ids[test]) for name, ids in table.groups.items()},
    )


def eicu_table() -> EicuTable:
    """Stays that have both APACHE tables and a known outcome."""
    patients, physiology, history = (_by(_csv(name), STAY) for name in ("patient", "apacheApsVar", "apachePredVar"))
    whole = physiology.keys() & history.keys()
    stays = [stay for stay, row in patients.items() if stay in whole and row[STATUS] in OUTCOMES]
    if not stays:
        raise DataError("The eICU tables have no stay in common; they are not the files Motley expects.")
    first, second = EICU_PHYSIOLOGY.split(), EICU_HISTORY.split()
    rows = [_numbers(physiology[stay], first) + _numbers(history[stay], second) for stay in stays]
    died = np.array([OUTCOMES[patients[stay][STATUS]] for stay in stays])
    groups = _places([patients[stay]["hospitalid"] for stay in stays])
    return EicuTable(np.array(rows, np.float32), died, first + second, groups)


STAY, STATUS = "patientunitstayid", "hospitaldischargestatus"
OUTCOMES = {"Alive": 0, "Expired": 1}


def _by(rows: list[dict[str, str]], column: str) -> dict[str, dict[str, str]]:
    return {row[column]: row for row in rows}


def _places(ids: list[str]) -> dict[str, NDArray[np.int64]]:
    """Where stays were, by hospital and coarser: ways in which they can be divided among clients."""
    hospitals = _by(_csv("hospital"), "hospitalid")
    region = _codes(hospitals[one]["region"] for one in ids)
    beds = _codes(hospitals[one]["numbedscategory"] for one in ids)
    together = 10 * region + beds  # hospitals of one size in one region
    return {"hospital": np.array([int(one) for one in ids]), "region": region, "beds": beds, "region_beds": together}


def _numbers(row: dict[str, str], columns: list[str]) -> list[float]:
    return [_number(row[column]) for column in columns]


def _csv(name: str) -> list[dict[str, str]]:
    source = "https://physionet.org/content/eicu-crd-demo/"
    with gzip.open(need(f"eicu_demo/{name}.csv.gz", "eicu", source), "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _number(text: str) -> float:
    value = float(text) if text else -1.0
    return float("nan") if value == -1.0 else value


def _codes(words: Iterable[str]) -> NDArray[np.int64]:
    return np.unique(list(words), return_inverse=True)[1].astype(np.int64)


def _impute(x: Floats, train: NDArray[np.bool_]) -> Floats:
    missing = np.isnan(x)
    seen = ~missing & train[:, None]
    mean = np.where(seen, x, 0).sum(0) / np.maximum(seen.sum(0), 1)
    flagged = missing[train].mean(0) > RARELY_MISSING
    return np.concatenate([np.where(missing, mean, x), missing[:, flagged]], 1).astype(np.float32)
