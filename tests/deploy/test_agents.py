"""What an agent brings and allows: its data, its policy, what it said before."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from motley.client.problems import make_problem
from motley.core.errors import DataError, InputError
from motley.deploy.agent_data import own_dataset
from motley.deploy.agent_process import Manner
from motley.deploy.disks import FolderDisk
from motley.deploy.policy import Policy
from motley.deploy.rehearsal import simulated
from motley.runtime.experiment import prepare
from tests.deploy.field import Field, tiny

PROBLEM = make_problem("classification")


def test_a_function_of_the_users_gives_the_samples(tmp_path: Path) -> None:
    file = tmp_path / "hospital.py"
    file.write_text("import numpy as np\ndef load():\n    return np.ones((6, 3), 'float32'), np.arange(6) % 2\n")
    found = own_dataset(f"{file}:load", PROBLEM)
    assert len(found) == 6
    with pytest.raises(InputError, match="has no function 'other'"):
        own_dataset(f"{file}:other", PROBLEM)
    file.write_text("1 / 0")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        own_dataset(f"{file}:load", PROBLEM)


def test_a_folder_of_tables_gives_the_samples(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x1,x2,y\n1,2,0\n3,4,1\n")
    (tmp_path / "b.csv").write_text("x1,x2,y\n5,6,1\n")
    found = own_dataset(str(tmp_path), PROBLEM, "y")
    assert np.asarray(found.x).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert np.asarray(found.y).tolist() == [0, 1, 1]
    for target, sentence in (("", "--target"), ("z", "no column 'z'")):
        with pytest.raises((InputError, DataError), match=sentence):
            own_dataset(str(tmp_path), PROBLEM, target)
    (tmp_path / "b.csv").write_text("x1,x2,y\n5,,1\n")
    with pytest.raises(DataError, match="no number"):
        own_dataset(str(tmp_path), PROBLEM, "y")
    with pytest.raises(InputError, match="names no data"):
        own_dataset("nothing", PROBLEM)


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ({"recipes": ["hospital-*"]}, "does not allow the recipe 'digits'"),
        ({"methods": ["scaffold"]}, "does not allow the method 'fedavg'"),
        ({"needs": ["clip_gradient"]}, "demands the part 'clip_gradient'"),
    ],
)
def test_a_policy_objects_with_a_sentence(rules: dict[str, list[str]], sentence: str) -> None:
    e = prepare(tiny())
    assert sentence in str(Policy(**rules).objection("digits", e.recipe.method, e.method))  # type: ignore[arg-type]
    assert Policy().objection("digits", e.recipe.method, e.method) is None
    assert Policy(recipes=["dig*"], methods=["fedavg"]).objection("digits", e.recipe.method, e.method) is None


@pytest.mark.parametrize(("hours", "awake"), [((9, 17), False), ((20, 6), True), ((23, 24), True), (None, True)])
def test_hours_may_pass_midnight(hours: tuple[int, int] | None, awake: bool) -> None:
    assert Policy(hours=hours).awake(datetime(2026, 1, 1, 23)) is awake


def test_a_policy_file_is_read_and_its_errors_are_sentences(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('methods = ["fedavg"]\nhours = [20, 6]\n')
    assert Policy.read(file).hours == (20, 6)
    file.write_text("epochz = 1\n")
    with pytest.raises(InputError):
        Policy.read(file)


def test_what_was_said_at_the_first_start_holds_at_later_ones(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path)
    Manner("hospital.py:load", "", Policy(epochs=2.0, hours=(20, 6)), limited=True).save(disk)
    again = Manner(executor="loop").or_as_before(disk)
    assert again.data == f"{Path('hospital.py').resolve()}:load"
    assert (again.policy.epochs, again.policy.hours, again.limited, again.executor) == (2.0, (20, 6), True, "loop")
    assert Manner(name="a").or_as_before(FolderDisk(tmp_path / "new")) == Manner(name="a")


def test_an_agent_that_will_not_take_part_says_so(tmp_path: Path) -> None:
    field = Field(tiny(clients=2, cohort=2), tmp_path)
    field.manners[1] = Manner(policy=Policy(methods=["scaffold"]), rehearsal=True)
    with pytest.raises(InputError, match="does not take part: its policy does not allow the method 'fedavg'"):
        field.run()


def test_agents_train_on_their_own_files(tmp_path: Path) -> None:
    recipe = tiny(clients=2, cohort=2, rounds=2)
    field = Field(recipe, tmp_path)
    x, y = field.e.dataset.x[:40], field.e.dataset.y[:40]
    np.savez(tmp_path / "own.npz", x=np.asarray(x), y=np.asarray(y))
    (tmp_path / "own.py").write_text(
        f"import numpy as np\ndef load():\n    f = np.load({str(tmp_path / 'own.npz')!r})\n    return f['x'], f['y']\n"
    )
    for seat in range(2):
        field.manners[seat] = Manner(data=f"{tmp_path / 'own.py'}:load", rehearsal=True)
    result = field.run()
    assert result.summary["model_sha256"] != simulated(field.e)
    assert [seat.n for seat in field.server.serving.roster.seats.values()] == [40, 40]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("columns", "labels", "sentence"),
    [
        (63, 10, r"do not fit this federation: with them its model has .*63.* where it has .*64"),
        (64, 50, r"labels up to 49, but this federation has 10 classes"),
    ],
)
def test_samples_that_do_not_fit_are_refused_before_a_seat_is_taken(
    columns: int, labels: int, sentence: str, tmp_path: Path
) -> None:
    field = Field(tiny(clients=2, cohort=2), tmp_path)
    own = _file(tmp_path, columns, labels)
    field.manners[1] = Manner(data=own, rehearsal=True)
    with pytest.raises(DataError, match=sentence):
        field.run()
    assert 1 not in field.server.serving.roster.seats  # type: ignore[union-attr]


def test_a_client_may_hold_a_few_of_the_classes_only(tmp_path: Path) -> None:
    field = Field(tiny(clients=2, cohort=2), tmp_path)
    field.manners[1] = Manner(data=_file(tmp_path, 64, 3), rehearsal=True)
    assert field.run().summary["rounds"] == 3


def _file(folder: Path, columns: int, labels: int) -> str:
    """A function that gives 60 samples with so many columns, with labels 0 to ``labels - 1``."""
    (folder / "own.py").write_text(
        "import numpy as np\ndef load():\n    rng = np.random.default_rng(0)\n"
        f"    return rng.random((60, {columns}), np.float32), np.arange(60) % {labels}\n"
    )
    return f"{folder / 'own.py'}:load"
