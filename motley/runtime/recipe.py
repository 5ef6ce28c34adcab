"""A recipe: everything that decides a result, validated and hashable. In TOML, overridden by key=value."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from motley.core.errors import RecipeError, UnknownNameError
from motley.core.plugins import import_modules

RECIPES = Path(__file__).parent.parent / "recipes"

# What decides how a run is carried out, but not what comes out of it.
WITHOUT_EFFECT = (
    "name",
    "summary",
    "imports",
    "executor",
    "workers",
    "device",
    "checkpoint_seconds",
    "state_memory_mb",
    "diagnostics",
    "track",
    "events",
)


class Recipe(BaseModel):
    """Data + fleet + model + method + schedule + seed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "run"
    summary: str = ""
    imports: list[str] = Field(default_factory=list, description="modules of one's own, or their files")

    data: str = Field("digits", description="data set, such as mnist or synthetic(alpha=1, beta=1)")
    partition: str = Field("iid", description="who holds what, such as classes(per_client=2) or dirichlet(alpha=0.3)")
    skew: str | None = Field(None, description="changes of clients' samples, such as rotation(...)")
    augment: str = Field("", description="random changes of images in training, such as crop(padding=4)+mirror")
    scale: Literal["own", "none", "pooled", "per_client", "public"] = Field(
        "own", description="whose statistics scale inputs; own: as the data set does, given data as they are"
    )
    split: str | None = Field(None, description="what is held out, such as by_clients(folds=5) or by_samples")
    fold: int = Field(0, ge=0, description="which fold of the split")
    data_seed: int | None = Field(None, ge=0, description="seed of partition, skew and split; none: that of the run")
    empty_clients: Literal["refuse", "allow"] = Field("refuse", description="clients that hold no sample")
    client_test: float = Field(0.0, ge=0, lt=1, description="share of each client's samples that it is judged on")
    clients: int | None = Field(20, ge=1, description="number of clients; natural partitions may bring their own")
    fleet: str = Field("ideal", description="devices, links, availability, joined by '+'")
    model: str = Field("mlp", description="model, such as mlp(hidden=[64]) or cnn_rebafl")
    problem: str = Field("classification", description="what is learned: classification, regression(error=huber), ...")
    initial: str | None = Field(None, description="start from the model of another run: its directory, or a phase")
    pretrained: str | None = Field(None, description="a file with weights for all of the module, also what is frozen")
    public: str | None = Field(None, description="samples the server holds, such as held(fraction=0.02)")

    method: str = Field("fedavg", description="methods and parts, joined by '+'")
    params: dict[str, dict[str, Any]] = Field(default_factory=dict, description="arguments: params.fedprox.mu=0.1")
    protocol: str | None = Field(None, description="protocol, where the method does not decide it")
    options: dict[str, Any] = Field(default_factory=dict, description="settings of the protocol")

    rounds: int = Field(50, ge=1)
    until: float | None = Field(None, gt=0, description="virtual seconds after which the run ends, whatever its rounds")
    stop: str | None = Field(None, description="ends the run early, such as accuracy>=0.9 for 3")
    cohort: int = Field(10, ge=1, description="clients per round, at most")
    epochs: float = Field(1.0, gt=0, description="local passes per round; fractions allowed")
    batch_size: int = Field(32, ge=1)
    lr: float = Field(0.1, gt=0)
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor per round")
    lr_schedule: str | None = Field(None, description="of lr, such as cosine or warm_up(rounds=5)+steps(at=[30])")
    optimizer: str = Field("sgd", description="local optimizer, such as sgd(momentum=0.9) or adam")
    deadline: float | None = Field(None, gt=0, description="seconds a round waits; late updates are given up")
    on_bad_update: Literal["stop", "drop"] = "stop"
    evaluate_every: int = Field(1, ge=1, description="rounds between two evaluations; the last is always evaluated")
    diagnostics: list[str] = Field(default_factory=list, description="also measured, such as diversity or per_class")
    track: str | None = Field(None, description="told of every round: tensorboard, mlflow, wandb, joined by '+'")
    events: bool = Field(False, description="whether events.jsonl tells what happened to every task")
    seed: int = Field(0, ge=0)
    phases: list[dict[str, Any]] = Field(default_factory=list, description="phases one after the other: [[phases]]")

    precision: Literal["float32", "tf32", "bf16"] = Field("float32", description="of the clients' forward and backward")

    executor: str = "auto"
    workers: int = Field(0, ge=0, description="processes of the pool; 0: as many as cores it may use")
    device: str = Field("auto", description="auto, cpu or cuda")
    checkpoint_seconds: float = Field(20.0, ge=0, description="wall seconds between two checkpoints; 0: every round")
    state_memory_mb: float = Field(1024.0, gt=0, description="memory for what parts keep on clients; the rest on disk")

    @field_validator("diagnostics", "imports", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """``diversity,per_class`` on the command line is a list, too."""
        return [name.strip(" []'\"") for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @property
    def identity(self) -> str:
        """A short hash of everything that decides the result; values that are defaults leave it as it is."""
        content = self.model_dump(exclude=set(WITHOUT_EFFECT), exclude_defaults=True)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def to_toml(self) -> str:
        """The recipe with every value spelled out."""
        rows: list[str] = []
        tables: list[str] = []
        for key, value in self.model_dump().items():
            if key == "phases":
                tables.extend(line for phase in value for line in ["", "[[phases]]", *_rows(phase)])
            elif isinstance(value, dict):
                tables.extend(_table(key, value))
            elif value is not None:
                rows.append(f"{key} = {_toml(value)}")
            elif Recipe.model_fields[key].default is not None:
                rows.append(f'{key} = "none"')  # TOML has no word for it
        return "\n".join([*rows, *tables]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(inner) for inner in value) + "]"
    if value is None:
        raise RecipeError("A recipe cannot hold 'none' inside params or options; leave the key out.")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _table(name: str, content: Mapping[str, Any]) -> list[str]:
    if not content:
        return []
    return ["", f"[{name}]", *_rows(content)]


def _rows(content: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_toml(value)}" for key, value in content.items()]


def names() -> list[str]:
    """The recipes that come with Motley."""
    return sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.toml"))


def load(
    source: str | Path | Mapping[str, Any] | Recipe,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    places: Iterable[Path | str] = (),
) -> Recipe:
    """A recipe from a name, a TOML file, a mapping or another recipe, with ``key=value`` overrides.

    What it imports is imported; ``places`` are further directories to look in, beside this one and that of a file.
    """
    if isinstance(source, Recipe):
        content = source.model_dump()
    elif isinstance(source, Mapping):
        content = dict(source)
    else:
        content = _read(str(source))
        places = [*places, *([Path(source).parent] if Path(str(source)).is_file() else [])]
    changes = overrides if isinstance(overrides, Mapping) else dict(parse_override(text) for text in overrides)
    for key, value in changes.items():
        _put(content, key, value)
    recipe = _validate(content)
    if recipe.imports:
        import_modules(recipe.imports, places)
    return recipe


def _read(source: str) -> dict[str, Any]:
    path = Path(source)
    if not path.suffix and not path.is_file():
        path = RECIPES / f"{source}.toml"
        if not path.is_file():
            raise UnknownNameError("recipe", source, names())
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"There is no recipe file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"The recipe file {path} is not valid TOML: {error}.") from None
    if "name" not in content:
        inside = path.is_relative_to(RECIPES)
        content["name"] = path.relative_to(RECIPES).with_suffix("").as_posix() if inside else path.stem
    return content


def parse_override(text: str) -> tuple[str, Any]:
    """``key=value`` from the command line."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"'{text}' is not an override; write key=value, for example rounds=20.")
    return key.strip(), value.strip()


def _literal(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "inf": float("inf")}.get(value.lower(), value)


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    head, *rest = key.split(".")
    if not rest:
        content[head] = value
        return
    if head not in ("params", "options"):
        raise RecipeError(f"Recipe key '{key}': only params and options have keys below them.")
    here = content[head] = dict(content.get(head) or {})
    for name in rest[:-1]:
        here[name] = dict(here.get(name) or {})
        here = here[name]
    here[rest[-1]] = _literal(value)


def _validate(content: dict[str, Any]) -> Recipe:
    known = Recipe.model_fields
    for key in content:
        if key not in known:
            raise UnknownNameError("recipe key", key, known)
    optional = [key for key, field in known.items() if type(None) in get_args(field.annotation)]
    for key in optional:
        if isinstance(content.get(key), str) and content[key].lower() == "none":
            content[key] = None
    try:
        return Recipe(**content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(step) for step in first["loc"])
        message = first["msg"][0].lower() + first["msg"][1:]
        raise RecipeError(f"Recipe key '{key}' is {first['input']!r}: {message}.") from None
