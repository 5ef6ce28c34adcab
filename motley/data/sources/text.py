"""Text: Shakespeare's next character by role, and the sentiment of tweets by user; tokens [N, T]."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from motley.core.errors import DataError
from motley.core.keys import Key
from motley.data.dataset import Dataset, Tokens
from motley.data.downloads import find, need
from motley.data.split import stratified

# LEAF's 80 letters, so that models and numbers can be compared
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
TEST_FRACTION = 0.2
Bytes = NDArray[np.uint8]


def encode(text: str) -> Bytes:
    """Letters as numbers below 80; a letter outside the alphabet counts as a space."""
    table = np.full(129, ALPHABET.index(" "), np.uint8)
    table[np.frombuffer(ALPHABET.encode("ascii"), np.uint8)] = np.arange(len(ALPHABET))
    return table[np.minimum(np.frombuffer(text.encode("utf-32-le"), np.uint32), 128)]


def shakespeare(
    length: int = 80, stride: int = 1, min_size: int = 64, roles: int | None = None, seed: int = 0
) -> Dataset:
    """Shakespeare's plays: the next character after `length` ones, 80 classes; group 'role' (play and role).

    As in LEAF, the speeches of a role are joined and every window of `length` characters (every `stride`-th) is a
    sample; the last fifth of a role's windows is its test part, without overlap with the training windows. Roles with
    fewer than `min_size` training windows are left out. `roles`: as many of these at random (by `seed`), as RADFed
    takes 143, in place of all.
    """
    if length < 1 or stride < 1:
        raise DataError(f"shakespeare needs length >= 1 and stride >= 1, not {length} and {stride}.")
    parts: list[tuple[Bytes, Bytes]] = []
    for text in _roles().values():
        train, test = _windows(encode(text), length, stride)
        if len(train) >= max(min_size, 1):
            parts.append((train, test))
    if not parts:
        raise DataError(f"No role of Shakespeare's has {min_size} training windows; lower min_size.")
    if roles is not None:
        if not 1 <= roles <= len(parts):
            raise DataError(f"shakespeare has {len(parts)} roles with {min_size} training windows, not roles={roles}.")
        drawn = Key.root(seed).fold("shakespeare", "roles").generator().choice(len(parts), roles, replace=False)
        parts = [parts[i] for i in np.sort(drawn)]
    return _spoken(parts)


def _spoken(parts: list[tuple[Bytes, Bytes]]) -> Dataset:
    """The data set of roles' training and test windows, whose last letter is the label."""
    role = [np.repeat(np.arange(len(parts)), [len(part[i]) for part in parts]) for i in (0, 1)]
    x, xt = (torch.from_numpy(np.concatenate([part[i] for part in parts])) for i in (0, 1))
    return Dataset(
        "shakespeare",
        x[:, :-1],
        x[:, -1].long(),
        xt[:, :-1],
        xt[:, -1].long(),
        len(ALPHABET),
        Tokens(),
        "text",
        {"role": torch.from_numpy(role[0])},
        {"role": torch.from_numpy(role[1])},
        vocabulary=len(ALPHABET),
    )


def _roles() -> dict[tuple[str, str], str]:
    source = "speeches by play and role as JSON lines"
    speeches: dict[tuple[str, str], list[str]] = {}
    with gzip.open(need("shakespeare_roles.jsonl.gz", "shakespeare", source), "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            speeches.setdefault((row["play"], row["role"]), []).append(row["text"])
    return {role: re.sub(r"\s+", " ", " ".join(texts)) for role, texts in speeches.items()}


def _windows(text: Bytes, length: int, stride: int) -> tuple[Bytes, Bytes]:
    """Windows of length + 1 characters; the test ones start after the last training one."""
    width = length + 1
    if len(text) < width:
        return np.zeros((0, width), np.uint8), np.zeros((0, width), np.uint8)
    every = np.lib.stride_tricks.sliding_window_view(text, width)
    cut = int((len(every)) * (1 - TEST_FRACTION))
    return every[:cut:stride], every[cut + length :: stride]


WORD = re.compile(r"https?://\S+|@\w+|[a-z']+|[!?]|[:;]-?[()dp]")
PAD, UNKNOWN = 0, 1


def words_of(text: str) -> list[str]:
    """A tweet as lower-case words; links and user names become <link> and <user>."""
    names = {"h": "<link>", "@": "<user>"}
    found = WORD.findall(text.lower())
    return [names[w[0]] if w[0] == "@" or w.startswith("http") else w for w in found]


def sent140(length: int = 25, vocabulary: int = 10_000) -> Dataset:
    """Sentiment of tweets (negative or positive): `length` words, group 'user'; a fifth is the test set.

    The vocabulary are the most frequent words of the training part; 0 is padding (in front), 1 any other word.
    """
    if length < 1 or vocabulary < 3:
        raise DataError(f"sent140 needs length >= 1 and vocabulary >= 3, not {length} and {vocabulary}.")
    label, user, text = _tweets()
    y = np.asarray(label, np.int64)
    test = stratified(y, TEST_FRACTION, Key.root(0).fold("sent140").generator())
    words = [words_of(tweet) for tweet in text]
    number = _numbered((word for i in np.flatnonzero(~test) for word in words[i]), vocabulary - 2)
    x = np.zeros((len(y), length), np.int16 if vocabulary < 2**15 else np.int32)
    for row, tweet in zip(x, words, strict=True):
        known = [number.get(word, UNKNOWN) for word in tweet[:length]]
        row[length - len(known) :] = known
    ids = np.unique(np.asarray(user), return_inverse=True)[1].astype(np.int64)
    t = torch.from_numpy
    return Dataset(
        "sent140",
        t(x[~test]),
        t(y[~test]),
        t(x[test]),
        t(y[test]),
        2,
        Tokens(),
        "text",
        {"user": t(ids[~test])},
        {"user": t(ids[test])},
        vocabulary=len(number) + 2,
    )


def _numbered(words: Iterable[str], most: int) -> dict[str, int]:
    """The most frequent words, numbered after padding and the unknown word."""
    counted = Counter(words)
    ranked = sorted(counted, key=lambda word: (-counted[word], word))[:most]
    return {word: number for number, word in enumerate(ranked, UNKNOWN + 1)}


def _tweets() -> tuple[Sequence[int], Sequence[str], Sequence[str]]:
    """Labels, users and texts: of the whole Sentiment140 where that is at hand, else of a slice of it."""
    whole = find("training.1600000.processed.noemoticon.csv")
    if whole is not None:
        with whole.open(encoding="latin-1", newline="") as file:
            rows: Iterable[list[str]] = csv.reader(file)
            label, user, text = zip(*((int(row[0]) // 4, row[4], row[5]) for row in rows), strict=True)
        return label, user, text
    path = need("sentiment140_slice.parquet", "sent140", "http://help.sentiment140.com")
    try:
        from pyarrow import parquet
    except ImportError:
        raise DataError("The data set 'sent140' needs pyarrow: pip install 'motley-fl[data]'.") from None
    table = parquet.read_table(path, columns=["label", "user", "text"]).to_pydict()
    return table["label"], table["user"], table["text"]
