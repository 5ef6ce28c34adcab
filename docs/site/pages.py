"""What the site has beside the pages in docs: tutorials, the project's own pages, a reference made from the code.

Links that leave `docs` lead to those pages; what the site does not hold (results, examples) stays as text.
"""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
PROJECT = {"CONTRIBUTING.md": "project/contributing.md", "CHANGELOG.md": "project/changelog.md"}
PROJECT |= {"SECURITY.md": "project/security.md"}
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```.*?^```)$", re.M | re.S)


def on_config(config: Any) -> Any:
    """Pages that the menu does not name yet stand at its end."""
    menu = json.dumps(config["nav"])
    more = [page.name for page in sorted(DOCS.glob("*.md")) if f'"{page.name}"' not in menu]
    if more:
        config["nav"].append({"More": more})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made here."""
    made = {where: (ROOT / name).read_text() for name, where in PROJECT.items()}
    for path in sorted((DOCS / "tutorials").glob("*.ipynb")):
        made[f"tutorials/{path.stem}.md"] = notebook(path)
    for path in pictures():
        where = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, where, abs_src_path=str(path)))
    made["reference/motley.md"] = surface()
    made["reference/extend.md"] = surface_for_extenders()
    for where, text in made.items():
        files.append(File.generated(config, where, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page with its links as they are on the site; code is left as it is."""
    here = page.file.src_uri
    home = next((ROOT / name for name, where in PROJECT.items() if where == here), DOCS / here)
    return "".join(
        part if part.startswith("```") else LINK.sub(lambda found: link(found, home.parent, here), part)
        for part in FENCE.split(markdown)
    )


def link(found: re.Match[str], folder: Path, here: str) -> str:
    """One link of a page that lies in ``folder`` and becomes ``here``."""
    text, target, anchor = found[1], found[2], found[3] or ""
    if not target or re.match(r"\w+:", target):
        return found[0]
    path = Path(os.path.normpath(folder / target))
    if path.is_relative_to(DOCS):
        where = path.relative_to(DOCS).as_posix()
    elif path.parent == ROOT and path.name in PROJECT:
        where = PROJECT[path.name]
    elif path.suffix == ".png":
        where = path.relative_to(ROOT).as_posix()
    else:
        return text
    where = where.replace(".ipynb", ".md")
    return f"[{text}]({os.path.relpath(where, os.path.dirname(here) or '.')}{anchor})"


def pictures() -> set[Path]:
    """Pictures of results that pages show."""
    shown = re.compile(r"!\[[^\]]*\]\((\.\./[^)]+\.png)\)")
    return {(DOCS / target).resolve() for page in DOCS.glob("*.md") for target in shown.findall(page.read_text())}


# ------------------------------------------------------------------ tutorials
def notebook(path: Path) -> str:
    """A notebook as a page: its text, its code, and below each cell what it printed."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        parts += [shown(output) for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def shown(output: dict[str, Any]) -> str:
    """An output of a cell: what it printed, or a picture."""
    if "text" in output:
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    return f"![what the cell draws](data:image/png;base64,{output['data']['image/png'].strip()})"


# ------------------------------------------------------------------ the reference
def surface() -> str:
    """What `motley` lists: functions first."""
    names = assigned(ROOT / "motley" / "__init__.py", "__all__")
    names = sorted(set(names) - {"__version__", "methods", "parts"}, key=lambda name: (not name.islower(), name))
    text = "# motley\n\nWhat a user calls. Methods and parts by name are in `motley.methods` and `motley.parts`.\n"
    return text + "".join(f"\n::: motley.{name}\n" for name in names)


def surface_for_extenders() -> str:
    """What `motley.extend` lists, by the table of `docs/extend.md`."""
    table = (DOCS / "extend.md").read_text().split("## What there is")[1]
    text = "# motley.extend\n\nThe surface for what is written outside Motley; [how](../extend.md).\n"
    for what, names in re.findall(r"^\| (\w+) \| (`.*) \|$", table, flags=re.M):
        text += f"\n## {what.capitalize()}\n"
        text += "".join(f"\n::: motley.extend.{name}\n" for name in re.findall(r"`(\w+)`", names))
    return text


def assigned(path: Path, name: str) -> Any:
    """A constant of a module, without importing it."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"{path} assigns no {name}.")
