"""How this process keeps its memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's mallopt
LARGEST = 1 << 30  # bytes of a tensor that is made of memory kept before


def keep_memory() -> None:
    """Lets this process keep memory that was freed, up to 2 GiB of it, for the tensors that come next.

    Otherwise glibc gives the memory of a large tensor back to the system at once, and the next tensor of that size
    costs an interruption per 4 KiB: in all as much as the arithmetic of a small step. Nothing happens but on Linux with
    glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
