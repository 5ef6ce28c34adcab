"""From a recipe to the things it names: data, fleet, network, method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from motley.client.augment import make_augment
from motley.client.optimizer import in_turns, make_optimizer
from motley.client.problems import make_problem
from motley.client.site import Devices, Site
from motley.client.trainer import Training, sent
from motley.core.bill import Cost
from motley.core.errors import DataError, InputError, RecipeError, StateError
from motley.core.keys import Key
from motley.core.learning_rates import LearningRate, factors
from motley.core.network import Network
from motley.core.part import Method
from motley.core.problem import Problem
from motley.core.schedule import Decayed, Schedule
from motley.core.types import Data
from motley.data.checks import check_given, settled
from motley.data.dataset import Dataset
from motley.data.datasets import load as load_dataset
from motley.data.federated import FederatedData, Partition
from motley.data.holdout import divide
from motley.data.own_tests import hold_out
from motley.data.preparation import Preparation
from motley.data.public import set_public_aside
from motley.data.scaling import as_one_site, each_by_itself, scaled, scaled_apart, unscaled
from motley.data.skew import make_skews
from motley.engine.executor import read_executor
from motley.fleet import Fleet, make_fleet
from motley.fleet.availability import Holders
from motley.methods import make_method
from motley.nets.cost import cost_of, flops
from motley.nets.zoo import build
from motley.protocol import PROTOCOLS
from motley.protocol.federation import option_names
from motley.runtime.fitting import arranged, check_fit, check_loss, check_needs
from motley.runtime.partition_cache import remembered
from motley.runtime.pretrained import prepared_network
from motley.runtime.recipe import Recipe
from motley.runtime.stopping import check_stop

GIVEN = "given"
"""What a recipe says of a thing that was given in Python."""


@dataclass(frozen=True)
class Experiment:
    """Everything a run works with."""

    recipe: Recipe
    data: FederatedData
    fleet: Fleet
    method: Method
    training: Training
    cost: Cost
    key: Key
    validation: Dataset | None = None  # its test set holds the validation samples
    public: Data | None = None  # samples that the server holds
    start: Tensor | None = None  # [P] the first model, where it is not the network's own
    now: float = 0.0  # seconds on the virtual clock at which the run begins
    lr: Callable[[int], float] | None = None  # the rate by round, where the recipe does not say it

    @property
    def net(self) -> Network:
        return self.training.net

    @property
    def problem(self) -> Problem:
        return self.training.problem

    @property
    def dataset(self) -> Dataset:
        return self.data.dataset

    @property
    def preparation(self) -> Preparation:
        """What is done to raw inputs before the model sees them."""
        return Preparation.of(self.dataset)

    @property
    def learning_rate(self) -> Schedule:
        """The clients' rate, by round."""
        decayed = Decayed(self.recipe.lr, self.recipe.lr_decay)
        if self.lr is not None:
            return LearningRate(self.lr)
        found = factors(self.recipe.lr_schedule, self.recipe.rounds)
        return LearningRate(decayed, found) if found else decayed

    @cached_property
    def site(self) -> Site:
        """Where its clients train."""
        return Site(self.training, self.data, Devices.of(self.fleet, flops(self.cost, 0), 4 * self.net.size))


class Given(NamedTuple):
    """What was given in Python, in place of what a recipe names."""

    data: FederatedData | None = None
    net: Network | None = None
    method: Method | None = None
    fleet: Fleet | None = None
    problem: Problem | None = None
    public: Data | None = None
    named_start: Mapping[str, Tensor] | None = None  # the first model, tensors by name
    now: float = 0.0  # seconds on the virtual clock at which the run begins
    lr: Callable[[int], float] | None = None  # the learning rate by round


def prepare(recipe: Recipe, given: Given | None = None) -> Experiment:
    """Builds what a recipe names; anything given in Python replaces what the recipe says.

    What cannot be run is refused here, before anything is written.
    """
    told = given or Given()
    key = Key.root(recipe.seed)
    method = _method(recipe, told.method)
    problem = told.problem or make_problem(recipe.problem)
    check_fit(method, problem)
    _check_names(recipe, problem)
    _check_rate(recipe, told.lr)
    data, validation, public = _data(recipe, told, method)
    data = arranged(problem, settled(data))
    validation = None if validation is None else problem.arranged(validation)
    check_given(data)
    dataset = data.dataset
    net = told.net
    if net is None:
        net = build(recipe.model, dataset.input_shape, problem.width(dataset), dataset.vocabulary, key.fold("init"))
    net = prepared_network(net, recipe.pretrained, method, key)
    check_loss(problem, net, dataset)
    check_fit(method, problem, net)
    fleet = _fleet(recipe, told, data, key)
    training = Training(
        net,
        method,
        in_turns(make_optimizer(recipe.optimizer), problem.turn(net)),
        recipe.batch_size,
        recipe.precision,
        make_augment(recipe.augment, dataset),
        problem,
    )
    sent(training)  # refuses layers that the model has not
    cost = cost_of(net, dataset.inputs(dataset.x[:1]))
    start = _start(recipe, told, net)
    return Experiment(recipe, data, fleet, method, training, cost, key, validation, public, start, told.now, told.lr)


def _fleet(recipe: Recipe, told: Given, data: FederatedData, key: Key) -> Fleet:
    """The fleet, in which clients without samples are never there."""
    fleet = told.fleet or make_fleet(recipe.fleet, data.n_clients, key.fold("fleet"), data.partition.clusters)
    if not data.partition.some_empty:
        return fleet
    return fleet.with_(presence=(Holders(data.sizes > 0), *fleet.presence))


def _start(recipe: Recipe, told: Given, net: Network) -> Tensor | None:
    if told.named_start is not None:
        return flat_model(told.named_start, net, "of an earlier phase")
    return initial_model(recipe.initial, net)


def _method(recipe: Recipe, given: Method | None) -> Method:
    method = given or make_method(recipe.method, recipe.params)
    if recipe.protocol is not None:
        method = on_protocol(method, recipe.protocol)
    known = option_names(method.protocol)
    for name in {**method.options, **recipe.options}:
        if known is not None and name not in known:
            told = ", ".join(known) or "none"
            raise InputError(f"The protocol '{method.protocol}' has no option '{name}'; its options are: {told}.")
    PROTOCOLS.check(method.protocol, {**method.options, **recipe.options})
    return method


def _check_rate(recipe: Recipe, lr: Callable[[int], float] | None) -> None:
    """Refuses a learning rate that is not said, or not positive in the first or the last round."""
    if recipe.lr_schedule == GIVEN and lr is None:
        raise RecipeError(
            "The learning rate of this run was given as a function; give it again: motley.resume(folder, lr=...)."
        )
    if lr is None and recipe.lr_schedule is not None:
        rate = LearningRate(Decayed(recipe.lr, recipe.lr_decay), factors(recipe.lr_schedule, recipe.rounds))
        for number in (1, recipe.rounds):
            rate(number)


def _check_names(recipe: Recipe, problem: Problem) -> None:
    if recipe.executor != "auto":
        read_executor(recipe.executor)
    from motley.runtime.diagnostics import DIAGNOSTICS  # they measure experiments

    if recipe.stop is not None:
        check_stop(recipe.stop, problem, recipe.split is not None, bool(recipe.diagnostics))
    if recipe.track is not None:
        from motley.runtime.trackers import make_trackers  # they listen to runs, which are made of experiments

        make_trackers(recipe.track)
    for name in recipe.diagnostics:
        check_needs("diagnostic", name, DIAGNOSTICS[name].meta.get("needs", ()), problem)


def _data(recipe: Recipe, told: Given, method: Method) -> tuple[FederatedData, Dataset | None, Data | None]:
    """Clients' data, validation samples, and what the server holds."""
    if told.data is not None:
        public, validation, data = told.public, None, scaled_apart(recipe.scale, told.data)
        if recipe.public is not None and public is None:
            raise RecipeError("Data that are divided among clients leave no samples to the server; leave out 'public'.")
    elif "given" in (recipe.data, recipe.partition):
        raise DataError(
            "The data of this recipe were given in Python, so its file does not hold them; give them again: "
            "motley.resume(folder, data=...) for its run, or motley.train(model, data, ...) for another."
        )
    else:
        whole, public = server_samples(recipe, load_dataset(recipe.data))
        data, validation = divide(recipe.split, whole, partial(share_out, recipe), recipe.fold, _data_key(recipe))
        validation = None if validation is None else as_one_site(validation)
        public = told.public or public
    data = _own_tests(recipe, data)
    if public is None:
        _check_without_public(method)
    return data, validation, public


def _check_without_public(method: Method) -> None:
    for part in method.parts:
        if "public" in part.needs:
            raise RecipeError(
                f"The part '{part.name}' trains on samples that the server holds; say where they come from: "
                "public='held(fraction=0.02)' or public='test(fraction=0.1)'."
            )


def _own_tests(recipe: Recipe, data: FederatedData) -> FederatedData:
    """Refuses clients without samples, where they are not allowed, and holds out what each client is judged on."""
    if recipe.empty_clients == "refuse":
        data.partition.refuse_empty()
    return hold_out(data, recipe.client_test, _data_key(recipe)) if recipe.client_test else data


def on_protocol(method: Method, protocol: str) -> Method:
    """A method on another protocol, which takes those of its options that it knows."""
    known = option_names(protocol)
    options = {key: value for key, value in method.options.items() if known is None or key in known}
    return Method(method.parts, protocol, options, method.name)


def _data_key(recipe: Recipe) -> Key:
    """Decides who holds what: fixed with ``data_seed`` while the run's own seed changes."""
    return Key.root(recipe.seed if recipe.data_seed is None else recipe.data_seed)


def server_samples(recipe: Recipe, dataset: Dataset) -> tuple[Dataset, Data | None]:
    """A data set without the samples that the server holds as the recipe says, and these; scaled as it says."""
    raw = unscaled(recipe.scale, dataset)
    return scaled(recipe.scale, *set_public_aside(recipe.public, raw, _data_key(recipe)))


def share_out(recipe: Recipe, dataset: Dataset, partition: Partition | None = None) -> FederatedData:
    """A data set divided among clients as the recipe says, or as was given."""
    key = _data_key(recipe)
    if partition is None:
        partition = remembered(recipe.partition, recipe.data, dataset, recipe.clients, key.fold("partition"))
    data = FederatedData(dataset, partition)
    if recipe.scale == "per_client":
        data = each_by_itself(data)
    return replace(data, transforms=make_skews(recipe.skew or "", data.dataset, data.partition, key))


def initial_model(source: str | None, net: Network) -> Tensor | None:
    """The model that another run left, or that a file holds: [P]; None where none is named."""
    if source is None:
        return None
    path = Path(source) / "model.safetensors" if Path(source).is_dir() else Path(source)
    if Path(source).is_dir() and not path.is_file():
        raise StateError(
            f"{source} holds no model.safetensors to start from: finish that run with 'motley resume', or make it anew "
            "if it is of an older Motley, which left no model."
        )
    try:
        named = safetensors.torch.load_file(path)
    except (OSError, SafetensorError) as error:
        raise StateError(f"The initial model {path} cannot be read: {error}.") from None
    return flat_model(named, net, str(path))


def flat_model(named: Mapping[str, Tensor], net: Network, source: str) -> Tensor:
    """Named tensors as the flat vector of a network."""
    for slot in net.layout.slots:
        found = named.get(slot.name)
        if found is None or tuple(found.shape) != slot.shape:
            got = "is missing" if found is None else f"has the shape {tuple(found.shape)}, not {slot.shape}"
            raise StateError(f"The model {source} does not fit this network: '{slot.name}' {got}.")
    return net.layout.flatten(dict(named)).to(torch.float32)


def initial_params(experiment: Experiment) -> Tensor:
    """The first global model [P]."""
    params = experiment.net.initial() if experiment.start is None else experiment.start.clone()
    return params.to(torch.float32)
