"""The pinned versions can be installed together: by package metadata alone, nothing is downloaded but that."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PINS = ROOT / "constraints.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCAL = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX")  # packages that only this machine has
SECONDS = 240
UNREACHABLE = ("connection", "timed out", "name resolution", "No matching distribution", "SSL", "ProxyError")


def requirements() -> list[str]:
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["data"], *extras["dev"], *extras["docs"]]
    return [one for one in wanted if not one.startswith("motley-fl")]


def resolve(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What pip would install, as it finds out by metadata; skips the test where the registry cannot be reached."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--retries", "0"]
    command += ["--target", str(folder / "nowhere"), "--only-binary=:all:", "-c", str(PINS), *options, *requirements()]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.skip("The package registry answers too slowly to say which versions fit together.")
    if "ResolutionImpossible" not in done.stderr and any(word in done.stderr for word in UNREACHABLE):
        pytest.skip("The package registry cannot be reached, so which versions fit together is not known here.")
    return done


@pytest.mark.registry
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_no_pin_contradicts_another_with_the_registrys_own_torch(tmp_path: Path, version: str) -> None:
    plain = {key: value for key, value in os.environ.items() if key not in LOCAL}
    done = resolve(tmp_path, "--python-version", version, **plain, PIP_CONFIG_FILE=os.devnull)
    assert done.returncode == 0, done.stderr


@pytest.mark.registry
def test_no_pin_contradicts_another_with_the_packages_of_this_machine(tmp_path: Path) -> None:
    done = resolve(tmp_path, **os.environ)
    assert done.returncode == 0, done.stderr


def test_every_python_that_is_promised_is_named() -> None:
    named = {one.rsplit(" ", 1)[-1] for one in PROJECT["classifiers"] if "Python :: 3." in one}
    assert named == {"3.11", "3.12", "3.13"}


def test_every_python_that_is_promised_can_be_named_to_make(tmp_path: Path) -> None:
    command = ["make", "-n", "-C", str(ROOT), "run", f"VENV={tmp_path / 'new'}", "PYTHON=python3.13", "TORCH=--pre"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"python3.13 -m venv {tmp_path / 'new'}" in done.stdout
    assert "-c constraints.txt torch --pre" in done.stdout
