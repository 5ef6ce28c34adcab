"""Careless use of the command: one clear sentence, an exit code that says so, no traceback, nothing lost."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import motley

MOTLEY = f"'{sys.executable}' -m motley"
SCRIPT = 'import motley\nmotley.run("digits", rounds=1, executor="pool(workers=2)")\n'


def shell(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell, in a directory of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    command = f"set -o pipefail; {command}".replace("motley ", f"{MOTLEY} ")
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=os.environ, capture_output=True, text=True, timeout=150, check=False
    )


def refused(folder: Path, command: str, *words: str, code: int = 2) -> None:
    """One sentence with these words, the exit code, and no traceback."""
    ended = shell(folder, command)
    said = " ".join(ended.stderr.split())
    print(f"$ {command}\n{said}")
    assert ended.returncode == code, (command, ended.returncode, ended.stderr)
    assert "Traceback" not in ended.stderr + ended.stdout, ended.stderr
    assert all(word in said for word in words), (words, said)


def names(folder: Path) -> None:
    """Mistyped names are answered with the nearest, and nothing is written."""
    refused(folder, "motley run digits method=fedpox", "did you mean 'fedprox'")
    assert not (folder / "runs").exists()


def edited(folder: Path) -> None:
    """An edited recipe is not taken up as if nothing had happened; put back, the run goes on."""
    run = folder / "run"
    motley.run("digits", rounds=2, folder=run)
    recipe = run / "recipe.toml"
    text = recipe.read_text()
    assert "\nlr = " in text
    recipe.write_text(re.sub(r"\nlr = .*", "\nlr = 0.123", text))
    refused(folder, f"motley resume {run} rounds=3", "lr", "0.123")
    recipe.write_text(text)
    assert motley.resume(run, rounds=3).summary["rounds"] == 3
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 3


def no_guard(folder: Path) -> None:
    """A pool in a script without a guard ends at once, and says what is missing."""
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(SCRIPT)
    ended = shell(folder, f"'{sys.executable}' mine.py")
    assert ended.returncode == 1 and 'if __name__ == "__main__":' in ended.stderr, ended.stderr


def read_only(folder: Path) -> None:
    """Where nothing can be written (/proc refuses root, too) one sentence says so."""
    refused(folder, "motley run digits rounds=1 --out /proc/runs", "/proc/runs", "cannot be written")


def cut_pipe(folder: Path) -> None:
    """`| head` takes nothing away from a run."""
    ended = shell(folder, "motley run digits rounds=1 seeds=2 | head -n 0")
    assert ended.stderr == "", ended.stderr
    assert len(list(folder.glob("runs/*/summary.json"))) == 2


def nothing_arrives(folder: Path) -> None:
    """Where every update is lost the run is no success."""
    refused(
        folder,
        "motley run digits rounds=30 'fleet=loss(probability=1.0)'",
        "Warning: No update",
        "not one update",
        "lost",
        code=1,
    )


MISTAKES = (edited, names, no_guard, read_only, cut_pipe, nothing_arrives)

if __name__ == "__main__":
    with ThreadPoolExecutor(2) as several:
        list(several.map(lambda mistake: mistake(Path(sys.argv[1]) / mistake.__name__), MISTAKES[1:]))
    MISTAKES[0](Path(sys.argv[1]) / "edited")
