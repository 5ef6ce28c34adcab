"""Every example of README, CONTRIBUTING and docs runs as it stands."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from pathlib import Path

import matplotlib as mpl
import pytest

import motley
from motley import extend
from motley.commands.cli import main
from motley.core.part import HOOKS
from motley.core.registry import Registry
from motley.methods import METHODS
from motley.runtime.recipe import Recipe

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def blocks(page: Path, *kinds: str) -> list[tuple[str, str]]:
    return [(kind, text) for kind, text in BLOCK.findall(page.read_text()) if kind in kinds]


def command(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", shlex.split(line))
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python", "console")], ids=lambda p: p.stem)
def test_examples(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks of one page share one namespace and one directory; `$ motley ...` must do what is shown below it."""
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    for registry in (found for found in vars(extend).values() if isinstance(found, Registry)):
        monkeypatch.setattr(registry, "entries", dict(registry.entries))
    before = signal.getsignal(signal.SIGTERM)
    names: dict[str, object] = {"__name__": f"examples_of_{page.stem}"}
    for kind, text in blocks(page, "toml", "python", "console"):
        if kind == "toml":
            Path("mine.toml").write_text(text)
        elif kind == "python":
            exec(compile(text, str(page), "exec", dont_inherit=True), names)
        else:
            for shown in re.split(r"^\$ ", text, flags=re.M)[1:]:
                line, _, expected = shown.partition("\n")
                assert line.startswith("motley "), "only the command is shown at a prompt"
                capsys.readouterr()
                code = command(line, monkeypatch)
                out, err = capsys.readouterr()
                assert code == (2 if "Error:" in expected else 0), err
                for wanted in expected.strip().splitlines():
                    assert wanted in out + err
    signal.signal(signal.SIGTERM, before)


def test_the_table_of_hooks_is_the_code() -> None:
    text = (ROOT / "docs" / "concepts.md").read_text()
    for name, rule in HOOKS.items():
        assert f"| `{name}` | {rule.place} | {rule.shared} | `{rule.signature}` | {rule.decides} |" in text
    assert len(re.findall(r"^\| `\w+` \| (?:server|client) ", text, flags=re.M)) == len(HOOKS)


def test_every_recipe_key_is_explained() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text()
    table = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", table)) >= set(Recipe.model_fields)


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_public_names() -> None:
    assert set(motley.__all__) == {"__version__", *motley._HOMES, *motley._PACKAGES}
    for name in motley.__all__:
        assert getattr(motley, name) is not None
    assert set(dir(motley)) == set(motley.__all__)
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        motley.rum  # noqa: B018
    assert callable(motley.run)
    assert motley.methods.fedavg().name == "fedavg"
    assert motley.parts.proximal(mu=1.0).name == "proximal"


def test_methods_win_over_modules_of_their_name() -> None:
    for entry in METHODS:
        assert getattr(motley.methods, entry.name) is entry.factory
