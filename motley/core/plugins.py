"""Packages that bring parts, models, data or protocols of their own: the entry point group ``motley``.

    [project.entry-points.motley]
    my-parts = "my_package.parts"

The modules are imported when a name is asked for that nobody knows yet, or when what there is is listed.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import entry_points

GROUP = "motley"


@cache
def load_plugins() -> tuple[str, ...]:
    """Imports every plugin that is installed, once; one that fails is told of and leaves the others be."""
    loaded = []
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:  # whatever somebody else's module may raise
            warnings.warn(f"The plugin '{entry.name}' ({entry.value}) cannot be loaded: {error}.", stacklevel=2)
        else:
            loaded.append(entry.name)
    return tuple(loaded)
