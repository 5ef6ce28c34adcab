"""Wrong input: one sentence on stderr, exit code 2, nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from motley.commands import listing
from tests.cli.conftest import Motley

CASES = {
    "recipe": (["run", "digts"], "did you mean 'digits'?"),
    "recipe file": (["run", "nowhere.toml"], "There is no recipe file nowhere.toml"),
    "recipe key": (["run", "digits", "rouds=3"], "did you mean 'rounds'?"),
    "recipe value": (["run", "digits", "rounds=many"], "Recipe key 'rounds' is 'many'"),
    "value out of range": (["run", "digits", "lr=-1"], "Recipe key 'lr'"),
    "override": (["run", "digits", "rounds"], "write key=value"),
    "part": (["run", "digits", "method=fedavg+proximel"], "did you mean 'proximal'?"),
    "method": (["run", "digits", "method=fedpox"], "did you mean 'fedprox'?"),
    "argument of a method": (["run", "digits", "method=fedprox(nu=1)"], "its arguments are: mu, partial"),
    "params of an absent method": (["run", "digits", "params.fedprox.mu=1"], "not in the method"),
    "data set": (["run", "digits", "data=minst"], "did you mean 'mnist'?"),
    "partition": (["run", "digits", "partition=dirichle(alpha=1)"], "did you mean 'dirichlet'?"),
    "model": (["run", "digits", "model=mpl"], "did you mean 'mlp'?"),
    "executor": (["run", "digits", "executor=lop"], "did you mean 'loop'?"),
    "protocol": (["run", "digits", "protocol=synchronus"], "did you mean 'synchronous'?"),
    "optimizer": (["run", "digits", "optimizer=sdg"], "did you mean 'sgd'?"),
    "conflict": (["run", "digits", "method=fedprox(mu=1)+proximal(mu=2)"], "'proximal' is there twice"),
    "more clients than samples": (["run", "digits", "clients=5000", "partition=iid"], "5000 clients"),
    "seeds": (["run", "digits", "seeds=some"], "seeds=5"),
    "list": (["list", "partz"], "did you mean 'parts'?"),
    "resume of nothing": (["resume", "nowhere"], "is not the directory of a run"),
    "report of nothing": (["report", "nowhere"], "is not the directory of a run"),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_input(motley: Motley, name: str) -> None:
    arguments, sentence = CASES[name]
    end = motley(*arguments)
    assert end.code == 2
    assert end.out == ""
    assert sentence in end.err
    assert end.err.startswith("Error: ")
    assert end.err.count("\n") == 1
    assert not Path("runs").exists()


def test_two_parts_that_decide_the_same(motley: Motley, monkeypatch: pytest.MonkeyPatch) -> None:
    from motley.core.part import PARTS, Part, part

    monkeypatch.setattr(PARTS, "entries", dict(PARTS.entries))

    def both(name: str) -> None:
        def factory() -> Part:
            """Chooses the first."""
            return Part(select=lambda s, rnd, pool: pool.ids[: rnd.cohort])

        factory.__name__ = name
        part("select")(factory)

    both("first_come")
    both("first_served")
    end = motley("run", "digits", "method=first_come+first_served")
    assert end.code == 2
    assert "'first_come' and 'first_served' both decide who trains" in end.err


@pytest.fixture
def finished(motley: Motley) -> Path:
    return Path(motley("run", "digits", "rounds=1", "epochs=1", "--json").last["run"])


def test_corrupt_checkpoint(motley: Motley, finished: Path) -> None:
    (state,) = (finished / "checkpoint").glob("state-*.safetensors")
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(bytes(content))
    end = motley("resume", finished)
    assert end.code == 2
    assert "damaged" in end.err
    state.unlink()
    assert "missing" in motley("resume", finished).err
    (finished / "checkpoint" / "checkpoint.json").write_text("{")
    end = motley("resume", finished)
    assert end.code == 2
    assert "not valid JSON" in end.err
    assert end.err.count("\n") == 1


def test_directory_of_another_version(motley: Motley, finished: Path) -> None:
    path = finished / "checkpoint" / "checkpoint.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "version": 99}))
    end = motley("resume", finished)
    assert end.code == 2
    assert "is of format 99" in end.err
    assert end.err.count("\n") == 1


def test_training_that_diverges(motley: Motley) -> None:
    end = motley("run", "digits", "rounds=3", "lr=1e30", "--json")
    assert end.code == 1
    assert "lower the learning rate" in end.err
    assert "Traceback" not in end.err


def test_the_unexpected(motley: Motley, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[listing.Row]:
        raise ValueError("a bolt is loose")

    monkeypatch.setitem(listing.KINDS, "parts", broken)
    monkeypatch.delenv("MOTLEY_DEBUG", raising=False)
    end = motley("list", "parts")
    assert end.code == 1
    assert (
        end.err == "Motley failed unexpectedly: ValueError: a bolt is loose. Set MOTLEY_DEBUG=1 to see the traceback.\n"
    )
    monkeypatch.setenv("MOTLEY_DEBUG", "1")
    with pytest.raises(ValueError, match="a bolt is loose"):
        motley("list", "parts")


def test_unknown_command_and_help(motley: Motley) -> None:
    assert motley("rum").code == 2
    end = motley("--help")
    assert end.code == 0
    for word in ("run", "resume", "list", "report", "bench"):
        assert word in end.out
    assert motley("--version").out == "0.1.0\n"
