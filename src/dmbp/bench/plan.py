"""What a benchmark asks: tasks (a dataset and a model, scored by some metrics) times methods.

methods = ["gradient", "gradcam", "dmbp"]

[settings.gradcam]
signed = true

[[tasks]]
name = "VOC/RN50"                       # what its lines of a table are called
dataset = "voc"                         # imagenet, voc, folder or manifest
path = "../data/VOC2012"                # from where the plan lies
model = "resnet50-voc"
weights = "../models"
metrics = ["IM", "cIM"]
fit = "squeeze"                         # the model's own way to see a photo, if left out
first = 50                              # photos; all, if left out
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

from dmbp.attribution import METHODS
from dmbp.data.dataset import READERS
from dmbp.errors import InputError
from dmbp.method_settings import setting_names
from dmbp.metrics.curve import STEPS
from dmbp.models.classifier import Fit
from dmbp.names import known

METRICS = ("IM", "cIM", "deletion", "pointing")


@dataclass(frozen=True)
class Task:
    """A dataset and a model, and what maps are scored by."""

    name: str
    dataset: str
    path: Path
    model: str
    metrics: tuple[str, ...] = ("IM",)
    weights: Path | None = None
    classes: Path | None = None
    fit: str | None = None
    first: int | None = None
    steps: int = STEPS

    def __post_init__(self) -> None:
        known("kind of dataset", self.dataset, READERS)
        for metric in self.metrics:
            known("metric", metric, METRICS)
        if self.fit is not None:
            known("fit", self.fit, get_args(Fit))
        for name in ("first", "steps"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise InputError(f"{name!r} of task {self.name!r} must be 1 or more, not {number}")


@dataclass(frozen=True)
class Plan:
    """Tasks times methods, with the settings of methods that have some."""

    tasks: tuple[Task, ...]
    methods: tuple[str, ...]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tasks or not self.methods:
            raise InputError("a plan needs at least one method and one task")
        for method in self.methods:
            known("method", method, METHODS)
        names = [task.name for task in self.tasks]
        if len(set(names)) < len(names):
            raise InputError("two tasks of the plan have the same name")
        for method, settings in self.settings.items():
            known("method", method, METHODS)
            for setting in settings:
                known(f"setting of {method}", setting, setting_names(method))

    def settings_of(self, method: str) -> dict[str, Any]:
        """All settings of a method that differ from its defaults."""
        return {**METHODS[method].settings, **self.settings.get(method, {})}


def read_plan(path: Path) -> Plan:
    """The plan in a TOML file; its paths are from where the file lies."""
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise InputError(f"cannot read the plan {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a plan: {error}") from error
    for key in found:
        known(f"entry of the plan {path}", key, ("methods", "settings", "tasks"))
    tasks = found.get("tasks", [])
    methods = found.get("methods", [])
    if not isinstance(tasks, list) or not isinstance(methods, list):
        raise InputError(f"{path} needs a list of methods and [[tasks]]")
    return Plan(
        tuple(_task(entry, path) for entry in tasks),
        tuple(str(method) for method in methods),
        found.get("settings", {}),
    )


_PATHS = ("path", "weights", "classes")


def _task(entry: Any, plan: Path) -> Task:
    if not isinstance(entry, dict):
        raise InputError(f"{plan} needs [[tasks]], each with its name, dataset, path and model")
    kinds = {item.name: item.type for item in fields(Task)}
    values: dict[str, Any] = {}
    for key, value in entry.items():
        known(f"entry of a task in {plan}", key, kinds)
        wanted: Any = list if key == "metrics" else int if key in ("first", "steps") else str
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise InputError(f"{key!r} of a task in {plan} cannot be {value!r}")
        values[key] = plan.parent / value if key in _PATHS else value
    missing = [key for key in ("name", "dataset", "path", "model") if key not in values]
    if missing:
        raise InputError(f"a task in {plan} has no {missing[0]!r}")
    if "metrics" in values:
        values["metrics"] = tuple(str(metric) for metric in values["metrics"])
    return Task(**values)
