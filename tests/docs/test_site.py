"""The documentation as a site: it builds without a warning, nothing is left out, and the start leads everywhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import motley
from motley import extend

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
needs_mkdocs = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")),
    reason="The site is built where its tools are installed: pip install 'motley-fl[docs]'.",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@needs_mkdocs
def test_every_page_is_on_the_site(site: Path) -> None:
    for page in PAGES:
        assert (site / page).with_suffix(".html").is_file(), page


@needs_mkdocs
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    users = (site / "reference" / "motley.html").read_text()
    for name in set(motley.__all__) - {"__version__", "methods", "parts"}:
        assert f'id="motley.{name}"' in users, name
    extenders = (site / "reference" / "extend.html").read_text()
    for name in extend.__all__:
        assert f'id="motley.extend.{name}"' in extenders, name


@needs_mkdocs
def test_no_link_of_the_site_leads_nowhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for target in re.findall(r'<a [^>]*href="([^"#?]+)', page.read_text()):
            if page.name != "404.html" and not re.match(r"\w+:", target):
                assert (page.parent / target).exists(), f"{page.relative_to(site)} -> {target}"


def test_the_start_links_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)", (DOCS / "index.md").read_text()))
    assert set(PAGES) - {"index.md"} <= linked
    assert {f"tutorials/{path.name}" for path in (DOCS / "tutorials").glob("*.ipynb")} <= linked


def test_the_menu_names_no_page_twice() -> None:
    menu = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    assert len(set(menu)) == len(menu) > 20
