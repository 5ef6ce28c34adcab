"""The surface for people who write parts, methods, protocols, problems, executors, carriers, phases or data.

Everything listed here is public: it changes only with a line in the changelog. Registries take what you add by
decorator; a package can bring its own by the entry point group ``motley`` (see `motley.core.plugins`).
"""

from __future__ import annotations

from motley.client.augment import AUGMENTATIONS, Change
from motley.client.optimizer import OPTIMIZERS, Optimizer
from motley.client.problems import PROBLEMS, Classification, Regression, make_problem
from motley.client.site import Devices, Site
from motley.client.trainer import Trained, Training, new_client, train
from motley.core.bill import Bill, Cost
from motley.core.codec import Content, dumps, loads
from motley.core.errors import (
    ConflictError,
    DataError,
    HookError,
    InputError,
    MotleyError,
    StateError,
    TrainingError,
    UnknownNameError,
)
from motley.core.hooks import HOOKS
from motley.core.keys import Key, fold_in, normal, permutation, uniform
from motley.core.layout import Layout
from motley.core.learning_rates import SCHEDULES
from motley.core.network import Network
from motley.core.part import PARTS, Method, Part, compose, part
from motley.core.problem import Model, Problem
from motley.core.ranges import (
    Count,
    CountOrZero,
    NotNegative,
    NotNegativeSchedule,
    Positive,
    PositiveShare,
    Share,
    ShareSchedule,
    Within,
)
from motley.core.registry import Registry
from motley.core.schedule import Exponential, Linear, Schedule
from motley.core.tasks import Assignment, Delivery, Event, Failed, Finished, Kept, Report, Update, Weights
from motley.core.types import (
    Batch,
    Client,
    Data,
    Facts,
    Mine,
    Outcomes,
    Output,
    Plan,
    Pool,
    Round,
    Setting,
    Tree,
    Updates,
)
from motley.data.dataset import Dataset
from motley.data.datasets import DATASETS
from motley.data.federated import FederatedData, Partition
from motley.data.partitioning import PARTITIONS
from motley.data.public import PUBLIC
from motley.engine.executor import EXECUTORS, Executor, Own
from motley.engine.loop import run_task
from motley.fleet.fleet import Fates, Fleet
from motley.fleet.layers import FLEETS, layer
from motley.methods.named import METHODS
from motley.nets.models import MODELS, model
from motley.protocol.carrier import Carrier, Deliver
from motley.protocol.federation import PROTOCOLS, Federation, Task
from motley.runtime.clock import SteppedLoop
from motley.runtime.diagnostics import DIAGNOSTICS, Moment
from motley.runtime.experiment import Experiment, Given, prepare
from motley.runtime.launch import Run, launch
from motley.runtime.listeners import Listener
from motley.runtime.phases import PHASES, Phase, World
from motley.runtime.recipe import Recipe, load
from motley.runtime.records import Record
from motley.runtime.result import Result
from motley.runtime.trackers import TRACKERS
from motley.runtime.virtual_carrier import VirtualCarrier

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "DIAGNOSTICS",
    "EXECUTORS",
    "FLEETS",
    "HOOKS",
    "METHODS",
    "MODELS",
    "OPTIMIZERS",
    "PARTITIONS",
    "PARTS",
    "PHASES",
    "PROBLEMS",
    "PROTOCOLS",
    "PUBLIC",
    "SCHEDULES",
    "TRACKERS",
    "Assignment",
    "Batch",
    "Bill",
    "Carrier",
    "Change",
    "Classification",
    "Client",
    "ConflictError",
    "Content",
    "Cost",
    "Count",
    "CountOrZero",
    "Data",
    "DataError",
    "Dataset",
    "Deliver",
    "Delivery",
    "Devices",
    "Event",
    "Executor",
    "Experiment",
    "Exponential",
    "Facts",
    "Failed",
    "Fates",
    "FederatedData",
    "Federation",
    "Finished",
    "Fleet",
    "Given",
    "HookError",
    "InputError",
    "Kept",
    "Key",
    "Layout",
    "Linear",
    "Listener",
    "Method",
    "Mine",
    "Model",
    "Moment",
    "MotleyError",
    "Network",
    "NotNegative",
    "NotNegativeSchedule",
    "Optimizer",
    "Outcomes",
    "Output",
    "Own",
    "Part",
    "Partition",
    "Phase",
    "Plan",
    "Pool",
    "Positive",
    "PositiveShare",
    "Problem",
    "Recipe",
    "Record",
    "Registry",
    "Regression",
    "Report",
    "Result",
    "Round",
    "Run",
    "Schedule",
    "Setting",
    "Share",
    "ShareSchedule",
    "Site",
    "StateError",
    "SteppedLoop",
    "Task",
    "Trained",
    "Training",
    "TrainingError",
    "Tree",
    "UnknownNameError",
    "Update",
    "Updates",
    "VirtualCarrier",
    "Weights",
    "Within",
    "World",
    "compose",
    "dumps",
    "fold_in",
    "launch",
    "layer",
    "load",
    "loads",
    "make_problem",
    "model",
    "new_client",
    "normal",
    "part",
    "permutation",
    "prepare",
    "run_task",
    "train",
    "uniform",
]
