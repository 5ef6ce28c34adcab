"""From a recipe to the things it names: data, fleet, network, method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from motley.client.augment import make_augment
from motley.client.optimizer import make_optimizer
from motley.client.trainer import Training
from motley.core.errors import RecipeError
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import Method
from motley.data.dataset import Dataset
from motley.data.datasets import load as load_dataset
from motley.data.federated import FederatedData
from motley.data.holdout import divide
from motley.data.skew import make_skews
from motley.fleet import Fleet, make_fleet
from motley.methods import make_method
from motley.nets.cost import Cost, cost_of
from motley.nets.zoo import build
from motley.protocol import PROTOCOLS
from motley.protocol.federation import option_names
from motley.run.partitions import remembered
from motley.run.recipe import Recipe


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

    @property
    def net(self) -> Network:
        return self.training.net

    @property
    def dataset(self) -> Dataset:
        return self.data.dataset


def prepare(
    recipe: Recipe,
    *,
    data: FederatedData | None = None,
    net: Network | None = None,
    method: Method | None = None,
    fleet: Fleet | None = None,
) -> Experiment:
    """Builds what a recipe names; anything given in Python replaces what the recipe says."""
    key = Key.root(recipe.seed)
    if method is None:
        method = make_method(recipe.method, recipe.params)
    if recipe.protocol is not None:
        method = on_protocol(method, recipe.protocol)
    PROTOCOLS[method.protocol]
    validation = None
    if data is None:
        data, validation = divide(
            recipe.split, load_dataset(recipe.data), partial(share_out, recipe), recipe.fold, _data_key(recipe)
        )
    dataset = data.dataset
    if net is None:
        net = build(recipe.model, dataset.input_shape, dataset.n_classes, dataset.vocabulary, key.fold("init"))
    if net.n_classes < dataset.n_classes:
        raise RecipeError(f"The model has {net.n_classes} outputs but the data {dataset.n_classes} classes.")
    if fleet is None:
        fleet = make_fleet(recipe.fleet, data.n_clients, key.fold("fleet"), data.partition.clusters)
    augment = make_augment(recipe.augment, dataset)
    training = Training(net, method, make_optimizer(recipe.optimizer), recipe.batch_size, recipe.precision, augment)
    cost = cost_of(net, dataset.inputs(dataset.x[:1]))
    return Experiment(recipe, data, fleet, method, training, cost, key, validation)


def on_protocol(method: Method, protocol: str) -> Method:
    """A method on another protocol, which takes those of its options that it knows."""
    known = option_names(protocol)
    options = {key: value for key, value in method.options.items() if known is None or key in known}
    return Method(method.parts, protocol, options, method.name)


def _data_key(recipe: Recipe) -> Key:
    """Decides who holds what: fixed with ``data_seed`` while the run's own seed changes."""
    return Key.root(recipe.seed if recipe.data_seed is None else recipe.data_seed)


def share_out(recipe: Recipe, dataset: Dataset) -> FederatedData:
    """A data set divided among clients as the recipe says."""
    key = _data_key(recipe)
    partition = remembered(recipe.partition, recipe.data, dataset, recipe.clients, key.fold("partition"))
    return FederatedData(dataset, partition, make_skews(recipe.skew or "", dataset, partition, key))


def initial_params(experiment: Experiment) -> Tensor:
    """The first global model [P]."""
    params = experiment.net.initial()
    return params.to(torch.float32)
