"""A column of a table: a method with its settings, and what the table calls it.

    >>> variant("gradcam", {}).label
    'GC'
    >>> variant("dmbp_paper", {"objective": "pos"}, label="DMBP⁺").settings
    {'preset': 'paper', 'objective': 'pos'}

Two columns may be one method under different settings; their labels tell them apart.

What a benchmark asks: tasks (a dataset and a model, scored by some metrics) times methods.

methods = [
    "gradient",
    "gradcam",
    { name = "dmbp", label = "DMBP, long", settings = { iterations = 200 } },
]
paper = "comparison"                    # the paper's table beside it: or ablation, reinitialisation

[settings.gradcam]                      # of every entry of this method
signed = true

[[tasks]]
name = "VOC/RN50"                       # what its lines of a table are called
dataset = "voc"                         # or another kind of dmbp.data.dataset
path = "../data/VOC2012"                # from where the plan lies
model = "resnet50-voc"
weights = "../models"
metrics = ["IM", "cIM"]                 # also deletion, pointing, reinitialisation
fit = "squeeze"                         # the model's own way to see a photo, if left out
first = 50                              # photos; all, if left out
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from torch import nn

from dmbp.attribution import METHODS
from dmbp.attribution.settings import check_kind, setting_names
from dmbp.bench.paper import TABLES
from dmbp.data.dataset import READERS
from dmbp.errors import InputError, require_known
from dmbp.metrics.insertion import STEPS
from dmbp.models.classifier import Fit


@dataclass(frozen=True)
class Variant:
    """A method, all settings of it that differ from its defaults, and its name in tables."""

    method: str
    settings: Mapping[str, Any]
    label: str


def variant(method: str, settings: Mapping[str, Any], *, label: str | None = None) -> Variant:
    """A variant of a method in the table; its label is the paper's name unless one is given."""
    require_known("method", method, METHODS)
    check_settings(method, settings)
    row = METHODS[method]
    whole = {**row.settings, **settings}
    try:
        row(nn.Identity(), **whole)  # which looks at the values
    except (TypeError, ValueError) as error:
        raise InputError(f"the settings of {method} are not right: {error}") from error
    return Variant(method, whole, label or row.short)


def check_settings(method: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a method does not take."""
    require_known("method", method, METHODS)
    for setting, value in settings.items():
        require_known(f"setting of {method}", setting, setting_names(method))
        check_kind(value, method, setting)


METRICS = ("IM", "cIM", "deletion", "pointing", "reinitialisation")


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
        require_known("kind of dataset", self.dataset, READERS)
        for metric in self.metrics:
            require_known("metric", metric, METRICS)
        if not self.metrics or len(set(self.metrics)) < len(self.metrics):
            raise InputError(f"task {self.name!r} needs a metric, each once, not {self.metrics}")
        if self.fit is not None:
            require_known("fit", self.fit, get_args(Fit))
        for name in ("first", "steps"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise InputError(f"{name!r} of task {self.name!r} must be 1 or more, not {number}")


@dataclass(frozen=True)
class Plan:
    """Tasks times variants of methods; `paper` names the paper's table that stands beside."""

    tasks: tuple[Task, ...]
    variants: tuple[Variant, ...]
    paper: str = "comparison"

    def __post_init__(self) -> None:
        if not self.tasks or not self.variants:
            raise InputError("a plan needs at least one method and one task")
        require_known("table of the paper", self.paper, TABLES)
        names = [task.name for task in self.tasks]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"two tasks of the plan are called {name!r}")
        labels = [one.label for one in self.variants]
        for label in labels:
            if labels.count(label) > 1:
                raise InputError(f"two methods of the plan are called {label!r}: give one a label")


def read_plan(path: Path) -> Plan:
    """The plan in a TOML file; its paths are from where the file lies."""
    found = _toml(path)
    for key in found:
        require_known(f"entry of the plan {path}", key, ("methods", "settings", "tasks", "paper"))
    tasks, methods = found.get("tasks", []), found.get("methods", [])
    settings = found.get("settings", {})
    if not isinstance(tasks, list) or not isinstance(methods, list):
        raise InputError(f"{path} needs a list of methods and [[tasks]]")
    if not isinstance(settings, dict) or not all(isinstance(s, dict) for s in settings.values()):
        raise InputError(f"settings in {path} are written under [settings.gradcam]")
    for method, own in settings.items():
        check_settings(method, own)
    return Plan(
        tuple(_task(entry, path) for entry in tasks),
        tuple(_variant(entry, settings, path) for entry in methods),
        str(found.get("paper", "comparison")),
    )


def _toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise InputError(f"cannot read the plan {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a plan: {error}") from error


_KINDS: Mapping[type, str] = {
    str: "a text", int: "a whole number", list: "a list", dict: "a table"
}  # fmt: skip

_ENTRY: Mapping[str, type] = {"name": str, "label": str, "settings": dict}


def _variant(entry: Any, settings: Mapping[str, Any], plan: Path) -> Variant:
    """A method by its name, or a table of its name, label and settings."""
    table: Any = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(table, dict) or "name" not in table:
        raise InputError(f"a method in {plan} is a name or has one, not {entry!r}")
    for key, value in table.items():
        require_known(f"entry of a method in {plan}", key, _ENTRY)
        if not isinstance(value, kind := _ENTRY[key]):
            raise InputError(f"{key!r} of a method in {plan} is {_KINDS[kind]}, not {value!r}")
    name: str = table["name"]
    own = {**settings.get(name, {}), **table.get("settings", {})}
    return variant(name, own, label=table.get("label"))


_PATHS = ("path", "weights", "classes")


def _task(entry: Any, plan: Path) -> Task:
    if not isinstance(entry, dict):
        raise InputError(f"{plan} needs [[tasks]], each with its name, dataset, path and model")
    kinds = {item.name: item.type for item in fields(Task)}
    values: dict[str, Any] = {}
    for key, value in entry.items():
        require_known(f"entry of a task in {plan}", key, kinds)
        wanted: Any = list if key == "metrics" else int if key in ("first", "steps") else str
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise InputError(f"{key!r} of a task in {plan} is {_KINDS[wanted]}, not {value!r}")
        values[key] = plan.parent / value if key in _PATHS else value
    missing = [key for key in ("name", "dataset", "path", "model") if key not in values]
    if missing:
        raise InputError(f"a task in {plan} has no {missing[0]!r}")
    if "metrics" in values:
        values["metrics"] = tuple(str(metric) for metric in values["metrics"])
    return Task(**values)
