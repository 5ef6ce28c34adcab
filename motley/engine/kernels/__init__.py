"""All Triton kernels, in one room: `*_op` is an operation with its plain reference, `*_kernels` how a GPU computes it.

Importing the room offers them (see `motley.core.acceleration`); kernels themselves are imported only where they run.
"""

from motley.core.discovery import import_room

import_room("motley.engine.kernels")
