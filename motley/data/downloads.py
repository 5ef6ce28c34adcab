"""Where data files come from: the directory in MOTLEY_DATA, then the user's cache, then the original public source."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from motley.core.errors import DataError

VARIABLE = "MOTLEY_DATA"


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/motley`` or ``~/.cache/motley``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "motley"


def directories() -> list[Path]:
    """Where files are looked for, in this order."""
    named = os.environ.get(VARIABLE)
    return ([Path(named).expanduser()] if named else []) + [cache_directory()]


def find(name: str) -> Path | None:
    """The file of that relative name, if it is here."""
    return next((path for base in directories() if (path := base / name).is_file()), None)


def need(name: str, dataset: str, source: str) -> Path:
    """The file of that name, which cannot be downloaded as it is; missing, a sentence says where to get it."""
    path = find(name)
    if path is None:
        raise DataError(
            f"The data set '{dataset}' needs the file '{name}', which is not in {_places()}; "
            f"put it there and name its directory in {VARIABLE} (source: {source})."
        )
    return path


def fetch(name: str, url: str, checksum: str, dataset: str) -> Path:
    """The file of that relative name, downloaded once from its original source and checked.

    ``checksum`` is an MD5, or another with its name in front (``sha256:...``).
    """
    here = find(name)
    if here is not None:
        return here
    try:
        import pooch
    except ImportError:
        raise DataError(
            f"The data set '{dataset}' is not in {_places()}, and downloading it needs pooch: "
            "pip install 'motley-fl[data]'."
        ) from None
    target = cache_directory() / name
    known = checksum if ":" in checksum else f"md5:{checksum}"
    try:
        pooch.get_logger().setLevel("WARNING")
        pooch.retrieve(url, known_hash=known, fname=target.name, path=target.parent, progressbar=False)
    except Exception as error:  # pooch passes on whatever its downloaders raise
        raise DataError(
            f"The data set '{dataset}' is not in {_places()} and could not be downloaded from {url} "
            f"({type(error).__name__}); connect to the network or name a directory that holds it in {VARIABLE}."
        ) from error
    return target


def read_npz(path: Path, *keys: str) -> list[NDArray[np.generic]]:
    """Arrays of a NumPy archive; a damaged file gives a sentence."""
    try:
        with np.load(path) as archive:
            return [archive[key] for key in keys]
    except KeyError as error:
        raise DataError(f"The file '{path.name}' lacks the array {error}; it is not the file Motley expects.") from None
    except Exception as error:  # zipfile, zlib and NumPy each have their own
        raise DataError(f"The file '{path}' cannot be read ({error}); delete it and fetch it again.") from error


def _places() -> str:
    return " or ".join(str(path) for path in directories())
