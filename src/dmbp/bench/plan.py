"""The plan of a benchmark: tasks (a dataset, a model and metrics) times variants of methods.

A plan is a TOML file:

    methods = [
        "gradient",
        "gradcam",
        { name = "dmbp", label = "DMBP, long", settings = { iterations = 200 } },
    ]
    paper = "comparison"            # the paper's table to print; another of TABLES, or none

    [settings.gradcam]              # for all entries of this method
    signed = true

    [[tasks]]
    name = "VOC/RN50"               # what tables call the task
    dataset = "voc"                 # or another key of dmbp.data.dataset.READERS
    path = "../data/VOC2012"        # relative to the plan, like all paths
    model = "resnet50-voc"
    weights = "../models"
    metrics = ["IM", "cIM"]         # or others of dmbp.metric_table
    fit = "squeeze"                 # default: that of the model's preprocessing; likewise size,
                                    # mean, std, scale, channels, interpolation and layout
    first = 50                      # number of photos; default: all

`methods = "all"` stands for every method of `dmbp.methods()`.

A variant is a method with its settings, and a column of a table. Two variants may share a method;
their labels distinguish them.

    >>> make_variant("gradcam", {}).label
    'GC'
    >>> make_variant("dmbp_paper", {"objective": "pos"}, label="DMBP⁺").settings
    {'preset': 'paper', 'objective': 'pos'}
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, cast, get_args

from dmbp.attribution import METHODS
from dmbp.attribution.settings import check_settings
from dmbp.bench.paper import TABLES
from dmbp.data.dataset import READERS
from dmbp.errors import InputError, first_line, require_known
from dmbp.files import read_text, shown
from dmbp.metric_table import METRICS
from dmbp.metrics.insertion import STEPS
from dmbp.models.classifier import CHANNELS, MULTIPLE, PADDING, SIDE, ChannelOrder, Fit, Layout
from dmbp.models.input_settings import (
    InputSettings,
    InterpolationName,
    PerChannel,
    Size,
    White,
    make_hashable,
)
from dmbp.validation import (
    FORBID_UNKNOWN,
    Constraint,
    ErrorContext,
    Location,
    OneOf,
    check_fields,
    parse,
)

MAX_BYTES = 2**20
"""The largest plan that is read."""

Count = Annotated[int, Constraint("a whole number from 1", lambda number: number >= 1)]

Steps = Annotated[
    int, Constraint("a whole number from 1 to 10,000", lambda number: 1 <= number <= 10_000)
]


@dataclass(frozen=True)
class Variant:
    """A method, its settings other than defaults, and what tables call it."""

    method: str
    settings: Mapping[str, Any]
    label: str

    @property
    def key(self) -> tuple[str, str]:
        """The method and its settings in hashable form, without the label."""
        return self.method, json.dumps(dict(self.settings), sort_keys=True)


def make_variant(
    method: str, settings: Mapping[str, Any], *, label: str | None = None, where: str = ""
) -> Variant:
    """Return a variant of a method after checking its settings.

    Args:
        method: A name in `dmbp.methods()`.
        settings: The method's settings, added to those of its entry in the registry.
        label: What tables call the variant; by default the paper's name for the method.
        where: Added to the method's name in messages, such as " in plan.toml".

    Raises:
        InputError: If the method or a setting is unknown, or a value is not allowed.
    """
    check_settings(method, settings, where=where)
    spec = METHODS[method]
    return Variant(method, {**spec.settings, **settings}, label or spec.short)


@dataclass(frozen=True)
class Task:
    """A dataset, a model, and the metrics that score its attributions.

    Args:
        name: What tables call it.
        dataset: The kind of dataset, a key of `dmbp.data.dataset.READERS`.
        path: The dataset's folder or file.
        model: A name that `dmbp.models.load_model` accepts.
        metrics: Names from `METRICS`, each once.
        weights: A file of weights for the model.
        classes: A file with one class name per line.
        fit: How photos are fitted to the model's input; by default as its preprocessing says.
        first: How many photos to take; by default all.
        steps: Points of an insertion or deletion curve.
        precision: What the model computes the masked images of metrics in: "float32", or "bfloat16"
            (float16 where the model's fast forward pass has it), which is several times as fast on
            a GPU and changes probabilities in the third digit. Maps do not depend on it.
        without: Labels of methods that the task leaves out, such as slow ones.
        size: These and the following are those of `dmbp.models.InputSettings`.
        resize: Likewise.
        mean: Likewise.
        std: Likewise.
        scale: Likewise.
        channels: Likewise.
        interpolation: Likewise.
        longest: Likewise.
        multiple: Likewise.
        padding: Likewise.
        layout: Likewise.

    Raises:
        InputError: If a value is not allowed.
    """

    name: str
    dataset: Annotated[str, OneOf("kind of dataset", tuple(READERS))]
    path: Path
    model: str
    metrics: tuple[Annotated[str, OneOf("metric", tuple(METRICS))], ...] = ("IM",)
    weights: Path | None = None
    classes: Path | None = None
    fit: Annotated[str, OneOf("fit", get_args(Fit))] | None = None
    first: Count | None = None
    steps: Steps = STEPS
    precision: Annotated[str, OneOf("precision", ("float32", "bfloat16"))] = "float32"
    without: tuple[str, ...] = ()
    size: Size = None
    resize: Size = None
    mean: PerChannel = None
    std: PerChannel = None
    scale: White = None
    channels: Annotated[ChannelOrder, CHANNELS] | None = None
    interpolation: InterpolationName | None = None
    longest: Annotated[int, SIDE] | None = None
    multiple: Annotated[int, MULTIPLE] | None = None
    padding: Annotated[int, PADDING] | None = None
    layout: Annotated[str, OneOf("layout", get_args(Layout))] | None = None

    __pydantic_config__ = FORBID_UNKNOWN

    @property
    def inputs(self) -> InputSettings:
        """How photos are prepared for the model, where the plan says so."""
        names = [item.name for item in fields(InputSettings)]
        return InputSettings(**{name: getattr(self, name) for name in names})

    def __post_init__(self) -> None:
        make_hashable(self)
        check_fields(self, owner=f"task {self.name!r}")
        if not self.metrics or len(set(self.metrics)) < len(self.metrics):
            metrics = list(self.metrics)
            raise InputError(f"task {self.name!r} needs at least one metric, each once: {metrics}")


@dataclass(frozen=True)
class Plan:
    """Tasks times variants; `paper` is a key of `TABLES`, the table to print with the results."""

    tasks: tuple[Task, ...]
    variants: tuple[Variant, ...]
    paper: str = "comparison"

    def variants_of(self, task: Task) -> tuple[Variant, ...]:
        """The variants of a task: all but those that it leaves out."""
        return tuple(variant for variant in self.variants if variant.label not in task.without)

    @property
    def computed_tasks(self) -> tuple[Task, ...]:
        """The tasks to compute: those that differ only in name and metrics are one."""
        alike: dict[Task, list[Task]] = {}
        for task in self.tasks:
            alike.setdefault(replace(task, name="", metrics=("IM",)), []).append(task)
        return tuple(
            replace(
                tasks[0], metrics=tuple(dict.fromkeys(m for task in tasks for m in task.metrics))
            )
            for tasks in alike.values()
        )

    def computed_variants(self, task: Task) -> tuple[Variant, ...]:
        """The variants of a task to compute: those that differ only in their label are one."""
        by_key: dict[tuple[str, str], Variant] = {}
        for variant in self.variants_of(task):
            by_key.setdefault(variant.key, variant)
        return tuple(by_key.values())

    def with_tasks(self, patterns: Sequence[str]) -> "Plan":
        """Return the plan with only the tasks whose names match one of some patterns.

        Args:
            patterns: Names, or shell patterns such as "VOC/*"; without any, the plan is returned.

        Raises:
            InputError: If no task matches one of the patterns.
        """
        for pattern in patterns:
            if not any(_matches(task.name, pattern) for task in self.tasks):
                names = ", ".join(repr(task.name) for task in self.tasks)
                raise InputError(
                    f"no task of the plan matches {shown(pattern)!r}; its tasks are {names}"
                )
        chosen = [task for task in self.tasks if any(_matches(task.name, p) for p in patterns)]
        return replace(self, tasks=tuple(chosen)) if patterns else self

    def __post_init__(self) -> None:
        if not self.tasks or not self.variants:
            raise InputError("a plan needs at least one method and one task")
        require_known("table of the paper", self.paper, TABLES)
        if name := _repeated([task.name for task in self.tasks]):
            raise InputError(f"two tasks of the plan are called {name!r}")
        if label := _repeated([variant.label for variant in self.variants]):
            raise InputError(f"two methods of the plan are called {label!r}: give one a label")
        labels = [variant.label for variant in self.variants]
        for task in self.tasks:
            for label in task.without:
                require_known(f"method in 'without' of task {task.name!r}:", label, labels)


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name is, or matches, a shell pattern; it may have brackets itself."""
    return name == pattern or fnmatchcase(name, pattern)


def _repeated(names: Sequence[str]) -> str | None:
    """Return the first name that occurs more than once, if any."""
    return next((name for name in names if names.count(name) > 1), None)


@dataclass(frozen=True)
class MethodEntry:
    """An entry of a plan's list of methods."""

    name: str
    label: str | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    __pydantic_config__ = FORBID_UNKNOWN


@dataclass(frozen=True)
class PlanFile:
    """A plan as written in its file, with paths relative to the file."""

    methods: tuple[MethodEntry, ...] = ()
    settings: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    tasks: tuple[Task, ...] = ()
    paper: str = "comparison"

    __pydantic_config__ = FORBID_UNKNOWN


def read_plan(path: Path) -> Plan:
    """Return the plan in a TOML file.

    Args:
        path: The file; paths in it are relative to its folder.

    Raises:
        InputError: If the file cannot be read, or something in it is unknown, missing or not
            allowed; the message names the file and the entry.
    """
    table = _read_toml(path)
    methods = table.get("methods")
    if methods == "all":
        methods = list(METHODS)
    if isinstance(methods, list):  # a string is short for a table with only a name
        entries = cast("list[Any]", methods)
        table["methods"] = [{"name": m} if isinstance(m, str) else m for m in entries]
    file = parse(PlanFile, table, lambda location: _error_context(location, table, path))
    for method, settings in file.settings.items():
        check_settings(method, settings, where=f" in {path}")
    tasks = tuple(_with_paths_from(path.parent, task) for task in file.tasks)
    variants = tuple(_variant(entry, file.settings, path) for entry in file.methods)
    try:
        return Plan(tasks, variants, file.paper)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _read_toml(path: Path) -> dict[str, Any]:
    text = read_text(path, what="plan", error=InputError, most_bytes=MAX_BYTES)
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise InputError(f"{shown(path)} is not a plan: its lists are nested too deeply") from error
    except ValueError as error:  # also a number of thousands of digits
        raise InputError(f"{shown(path)} is not a plan: {first_line(error)}") from error


def _error_context(location: Location, table: Mapping[str, Any], path: Path) -> ErrorContext:
    """Return how messages refer to the task, method or plan at a location of the file."""
    if location[:1] == ("settings",) and len(location) == 2:
        return ErrorContext(
            f"the plan {path}", key_name=lambda _: f"[settings.{location[1]}] in {path}"
        )
    if len(location) < 2 or location[0] not in ("tasks", "methods"):
        return ErrorContext(f"the plan {path}")
    kind, index = str(location[0]).removesuffix("s"), int(location[1])
    entry = table[str(location[0])][index]
    if not isinstance(entry, dict):
        return ErrorContext(f"the plan {path}")
    name: Any = cast("dict[str, Any]", entry).get("name")
    called = repr(name) if isinstance(name, str) else index + 1
    return ErrorContext(f"{kind} {called} in {path}")


def _variant(entry: MethodEntry, settings: Mapping[str, Any], path: Path) -> Variant:
    merged = {**settings.get(entry.name, {}), **entry.settings}
    return make_variant(entry.name, merged, label=entry.label, where=f" in {path}")


def _with_paths_from(folder: Path, task: Task) -> Task:
    """Return a task whose relative paths are taken from a folder."""
    paths = {name: getattr(task, name) for name in ("path", "weights", "classes")}
    return replace(task, **{name: folder / path for name, path in paths.items() if path})
