"""What becomes of a run whose directory cannot be written: a sentence, and how to go on."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from motley.core.errors import MotleyError, StateError
from motley.runtime import checkpoint

UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}


@contextmanager
def unwritable_is_told(folder: Path | None) -> Iterator[None]:
    """Turns the system's errors about a full or read-only disk into a sentence that says what is saved."""
    try:
        yield
    except OSError as error:
        if folder is None or not (error.errno in UNWRITABLE or _has_no_place(folder, error)):
            raise
        where = error.filename or folder
        raise StateError(f"{where} cannot be written: {error.strerror}. {_saved(folder)}") from error


def _has_no_place(folder: Path, error: OSError) -> bool:
    """Whether the directory of the run, and nothing else, cannot be made where it is to lie."""
    if error.errno not in (errno.ENOENT, errno.EEXIST) or error.filename is None:
        return False
    missing, folder = Path(error.filename).absolute(), folder.absolute()
    return missing == folder or missing in folder.parents or folder in missing.parents


def _saved(folder: Path) -> str:
    try:
        number = checkpoint.read(folder / "checkpoint")["round"]
    except (MotleyError, OSError):
        return "Nothing was saved; make room, or choose another directory, and start again."
    return f"All up to round {number} is saved; make room and continue with: motley resume {folder}"
