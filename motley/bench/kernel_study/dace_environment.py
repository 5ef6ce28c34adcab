"""DaCe's environment: a virtual environment of its own in a cache folder, since DaCe wants older NumPy and networkx."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from motley.core.errors import InputError
from motley.core.files import write_json

WANTED = ("dace==1.0.2", "networkx<3.6", "numpy<2", "scipy-openblas32")
TOOLS = ("g++", "cmake")
PATIENCE = 900.0  # seconds for the installation


def default_folder() -> Path:
    """``dace`` in Motley's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "motley" / "dace"


def missing_tools() -> list[str]:
    """What DaCe calls to compile, and is not here."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def python_of(folder: Path) -> Path:
    return folder / "environment" / "bin" / "python"


def is_ready(folder: Path) -> bool:
    """Whether the environment was made to its end, with what is wanted now."""
    marker = folder / "installed.json"
    return marker.is_file() and json.loads(marker.read_text()) == list(WANTED) and python_of(folder).is_file()


def make_environment(folder: Path, tell: Callable[[str], None]) -> Path:
    """DaCe's interpreter, after making its environment where it is not there yet."""
    missing = missing_tools()
    if missing:
        raise InputError(
            f"DaCe compiles with {' and '.join(TOOLS)}, and {' and '.join(missing)} cannot be found; install that, or "
            "leave out --with dace."
        )
    if not is_ready(folder):
        tell(f"Making an environment for {', '.join(WANTED)} in {folder} ...")
        shutil.rmtree(folder / "environment", ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", str(folder / "environment")])
        _run([str(python_of(folder)), "-m", "pip", "install", "--quiet", *WANTED])
        write_json(folder / "installed.json", list(WANTED))
    return python_of(folder)


def _run(command: list[str]) -> None:
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"DaCe's environment was not made within {PATIENCE:.0f} seconds; try again later.") from None
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise InputError(
            f"DaCe's environment could not be made: {lines[-1] if lines else 'pip said nothing'} (Python "
            f"{sys.version_info.major}.{sys.version_info.minor}; DaCe 1.0.2 needs one with a NumPy before 2)."
        )
