"""Pictures small enough to be kept beside the numbers they show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from motley.core.files import write_bytes

MOST = 150_000  # bytes of a picture
COLOURS = 128  # of its palette: lines, bars and letters need few
COARSEST = 40  # dots per inch, below which letters cannot be read


@contextmanager
def drawing(font_size: int = 11) -> Iterator[Any]:
    """Pyplot in the style of all pictures, without a window."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    with mpl.rc_context({"font.size": font_size, "axes.spines.top": False, "axes.spines.right": False}):
        yield plt


def save(figure: Any, path: Path, dpi: int = 130) -> Path:
    """Writes a figure as PNG with a palette, as fine as ``dpi`` or as its size allows, and closes it."""
    import matplotlib.pyplot as plt

    content = _png(figure, dpi)
    while len(content) > MOST and dpi > COARSEST:
        dpi = max(COARSEST, int(0.85 * dpi))
        content = _png(figure, dpi)
    write_bytes(path, content)
    plt.close(figure)
    return path


def _png(figure: Any, dpi: int) -> bytes:
    from PIL import Image

    drawn, small = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(small, format="PNG", optimize=True)
    return small.getvalue()
