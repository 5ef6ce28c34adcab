"""``motley new``: a small project with data, a model, a recipe and a part of one's own."""

from __future__ import annotations

import keyword
import sys
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from motley.commands.output import AsJson, OutputMode, shown
from motley.core.errors import InputError

TEMPLATE = Path(__file__).parent / "project"
SUFFIX = ".tmpl"


def new(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="A directory that is not there yet: my-experiment.")],
    as_json: AsJson = False,
) -> None:
    """Make a small project with data, a model, a recipe and a part of your own, which runs."""
    mode = OutputMode(as_json)
    package = package_name(name.name)
    if name.exists() and (not name.is_dir() or any(name.iterdir())):
        raise InputError(f"There is something at {name} already; choose another name.")
    files = write_project(name, package)
    mode.say(f"Made {shown(name)} with {len(files)} files; begin with:\n  cd {shown(name)}\n  motley run recipe.toml")
    mode.end({"project": str(name), "package": package, "files": files})


def package_name(name: str) -> str:
    """A project's name as that of a Python package which is nobody else's."""
    found = name.lower().replace("-", "_").replace(" ", "_")
    if not found.isidentifier() or not found.isascii() or keyword.iskeyword(found):
        raise InputError(
            f"'{name}' cannot be the name of a Python package; take letters, digits and '-', such as my-test."
        )
    known = find_spec(found)
    if found in sys.stdlib_module_names or (known is not None and known.origin is not None):
        raise InputError(f"There is a Python package '{found}' already; choose another name, such as my-{name}.")
    return found


def write_project(folder: Path, package: str) -> list[str]:
    """Writes the files of a project; their paths in it."""
    values = {
        "package": package, "title": folder.name,
        **{f"package_{kind}": f"{package}_{kind}" for kind in ("data", "net", "calm")},
    }  # fmt: skip
    written = []
    for source in sorted(TEMPLATE.rglob(f"*{SUFFIX}")):
        inside = source.relative_to(TEMPLATE).with_suffix("").as_posix()
        inside = f"{package}/{inside.removeprefix('package/')}" if inside.startswith("package/") else inside
        target = folder / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Template(source.read_text(encoding="utf-8")).substitute(values), encoding="utf-8")
        written.append(inside)
    return written
