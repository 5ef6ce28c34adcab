"""How this process keeps its memory, and who looks after it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
import sys
import time
from collections.abc import Iterator

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's mallopt
_LARGEST = (1 << 30, 1 << 25)  # bytes; what glibc takes, new and old
_KEPT = (1 << 31) - 1
LONG = 10.0  # seconds beside which a look at everything there is does not count


def keep_memory() -> None:
    """Lets this process keep the memory of tensors that were freed for those that come next.

    Otherwise glibc gives the memory of a large tensor back to the system at once, and the next tensor of that size
    costs an interruption per 4 KiB: in all as much as the arithmetic of a small step. Free memory at the end of the
    heap still goes back beyond 2 GiB. Nothing happens but on Linux with glibc.
    """
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        if any(libc.mallopt(_MMAP_THRESHOLD, largest) for largest in _LARGEST):
            libc.mallopt(_TRIM_THRESHOLD, _KEPT)


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Spares Python's garbage collector, inside the block, what was there before and is not garbage.

    A round makes many small things, and every so often the collector looks at everything there is; with torch loaded
    that takes a fifth of a second. What is set aside is still freed when nothing refers to it, unless it refers to
    itself; of that, what is young is collected before, and the rest after a block that was long.
    """
    begun = time.monotonic()
    gc.collect(1)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if time.monotonic() - begun > LONG:
            gc.collect()
