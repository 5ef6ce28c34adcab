"""What an agent is willing to do, by its own rules: looked at before anything is trained.

A policy is a TOML file beside the agent's data; whatever it leaves out is allowed.

    recipes = ["hospital-*"]          # names of recipes
    methods = ["fedavg", "scaffold"]  # parts and methods that may be used
    epochs = 5.0                      # most passes per task; who stops earlier sends what it reached, where it may
    hours = [20, 6]                   # from, to: only between these hours of the day
    tell_labels = false               # whether the class counts of the data may be told
    needs = ["clip_gradient"]         # parts without which nothing is trained
"""

from __future__ import annotations

import re
import tomllib
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from motley.core.errors import InputError
from motley.core.part import Method


class Policy(BaseModel):
    """The rules of one agent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipes: list[str] | None = None
    methods: list[str] | None = None
    epochs: float = Field(float("inf"), gt=0)
    hours: tuple[int, int] | None = None
    tell_labels: bool = True
    needs: list[str] = []

    @classmethod
    def read(cls, path: Path | None) -> Policy:
        """A policy from its file; without one everything is allowed."""
        if path is None:
            return cls()
        try:
            return cls(**tomllib.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise InputError(f"There is no policy file {path}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"The policy {path} is not valid TOML: {error}.") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(place) for place in first["loc"])
            raise InputError(f"In the policy {path}, '{where}' is wrong: {first['msg']}.") from None

    def objection(self, recipe: str, spec: str, method: Method) -> str | None:
        """Why this agent will not take part in a run of this recipe; None where it will. ``spec`` names the method."""
        if self.recipes is not None and not any(fnmatch(recipe, pattern) for pattern in self.recipes):
            return f"its policy does not allow the recipe '{recipe}'"
        foreign = [name for name in _named(spec) if self.methods is not None and name not in self.methods]
        if foreign:
            return f"its policy does not allow the method '{foreign[0]}'"
        missing = set(self.needs) - {part.name for part in method.parts}
        return f"its policy demands the part '{min(missing)}'" if missing else None

    def awake(self, now: datetime) -> bool:
        """Whether it trains at this hour of the day."""
        if self.hours is None:
            return True
        begin, end = self.hours
        return begin <= now.hour < end if begin <= end else now.hour >= begin or now.hour < end


def _named(method: str) -> list[str]:
    """The names in a method as a recipe writes it: ``scaffold+clip_gradient(norm=1)`` has two."""
    return [name.strip() for name in re.sub(r"\([^()]*\)", "", method).split("+")]
