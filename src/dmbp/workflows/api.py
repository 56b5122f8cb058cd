"""The functions of `import dmbp`: `explain`, `compare`, `sanity` and `doctor`.

    e = dmbp.explain("photo.jpg")                         # the built-in model, the predicted class
    e = dmbp.explain(image, model, target="cat")          # your own nn.Module
    e.plot("cat.png")

Each takes an input and a model in any form, and returns a result that shows itself. The commands of
the same names call them.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.parameter import is_lazy

from dmbp.attribution import DMBP, parse_method_names
from dmbp.attribution.dmbp import PresetName
from dmbp.attribution.settings import MethodSettings, check_settings
from dmbp.decompose import Combine, Precision, Removal
from dmbp.engine import fingerprint
from dmbp.errors import InputError, ModelError
from dmbp.linear import Selection, Smoothing
from dmbp.linear.model.wrappers import evaluating
from dmbp.models import Classifier
from dmbp.validation import check_keywords, suggests_keywords
from dmbp.workflows.arrays import ArrayInput
from dmbp.workflows.batches import explain_together
from dmbp.workflows.compare import Comparison
from dmbp.workflows.compare import compare as run_methods
from dmbp.workflows.doctor import Diagnosis, diagnose
from dmbp.workflows.explain import progress_bar
from dmbp.workflows.explanation import Explanation
from dmbp.workflows.explanations import Explanations
from dmbp.workflows.prediction import InputPrediction, ModelSpec, Prediction
from dmbp.workflows.sanity import DEFAULT_METHODS, SanityCheck, check_sanity
from dmbp.workflows.sources import (
    InputQuestion,
    ModelOptions,
    Photo,
    asked_classes,
    asked_targets,
    check_preparation,
    has_random_weights,
    load_classifier,
    read_inputs,
)

ActivationName = Literal["softmax", "sigmoid", "none"]
Result = Explanation[InputPrediction]


OnePhoto = str | PathLike[str] | bytes | Image.Image | NDArray[Any] | Tensor
"""A photo, or another input, in any form."""

AnyModel = str | PathLike[str] | nn.Module | ExportedProgram | Classifier | ModelSpec | None
"""A model by name or file, or one that the user made; None is the model in the box."""


class DMBPSettings(TypedDict, total=False):
    """Settings of `DMBP` that override those of its preset; `help(dmbp.DMBP)` describes them."""

    preset: PresetName
    objective: Literal["all", "posneg", "pos"]
    iterations: int
    learning_rate: float
    reference: Any
    combine: Combine
    precision: Precision
    window: float
    stride: float
    contexts: int
    floor: float
    removal: Removal
    mixtures: int
    smooth: Smoothing
    sites: Selection


@overload
def explain(
    photo: list[Any],
    model: AnyModel = None,
    target: Any = None,
    *,
    rather_than: Any = (),
    weights: str | Path | None = None,
    classes: Sequence[str] | str | Path | None = None,
    preprocessing: Any = None,
    activation: ActivationName | None = None,
    prompts: Sequence[str] = (),
    device: str = "auto",
    bands: Sequence[int] | None = None,
    name: str = "",
    progress: bool = False,
    **settings: Unpack[DMBPSettings],
) -> Explanations: ...


@overload
def explain(
    photo: OnePhoto,
    model: AnyModel = None,
    target: Any = None,
    *,
    rather_than: Any = (),
    weights: str | Path | None = None,
    classes: Sequence[str] | str | Path | None = None,
    preprocessing: Any = None,
    activation: ActivationName | None = None,
    prompts: Sequence[str] = (),
    device: str = "auto",
    bands: Sequence[int] | None = None,
    name: str = "",
    progress: bool = False,
    **settings: Unpack[DMBPSettings],
) -> Result: ...


def explain(
    photo: OnePhoto | list[Any],
    model: AnyModel = None,
    target: Any = None,
    *,
    rather_than: Any = (),
    weights: str | Path | None = None,
    classes: Sequence[str] | str | Path | None = None,
    preprocessing: Any = None,
    activation: ActivationName | None = None,
    prompts: Sequence[str] = (),
    device: str = "auto",
    bands: Sequence[int] | None = None,
    name: str = "",
    progress: bool = False,
    **settings: Unpack[DMBPSettings],
) -> Result | Explanations:
    """Explain what a model saw in a photo, or in another input.

        e = dmbp.explain("photo.jpg")
        e = dmbp.explain(image, model, target="cat", classes=names, preprocessing=transform)
        e.show(); e.plot("cat.png"); e.report("cat.html"); e.to_dict()

    Args:
        photo: A path, the bytes of a file, a Pillow image, an array or a tensor; or a list of
            them. Tensors are given to the model as they are, arrays that are no photos, too.
        model: A name as in `--model`, such as "resnet50", "timm:resnet50.a1_in1k" or "net.onnx";
            an `nn.Module`, an `ExportedProgram` or a `dmbp.models.Classifier`. None is the model
            in the box.
        target: What to explain: a class by number or name, an object of `dmbp.targets`, a function
            of an image's outputs, or a list of them, all of which are asked about every photo.
            None takes what the model says.
        rather_than: Classes that the target is compared with, or "rivals".
        weights: A file of weights for a model by name.
        classes: The names of the classes, or a file with one on each line.
        preprocessing: How photos become the model's input: the transform of your validation photos,
            an image processor, a `dmbp.models.Preprocessing`, or settings such as
            `{"size": 224, "mean": 0.5, "std": 0.5}`, where what is left out is ImageNet's. It is
            known for models by name and for modules of torchvision, timm and transformers.
        activation: What turns outputs into probabilities: "softmax", "sigmoid" or "none".
        prompts: Texts to compare photos with, for models such as CLIP.
        device: Where a model by name runs; "auto" takes a GPU if there is one. Your own module
            stays where it is.
        bands: The channels that pictures show of an image with many, from 1.
        name: What pictures and records call the input; by default its path.
        progress: Whether a bar is shown in the terminal.
        **settings: Settings of `DMBP`, such as `preset="paper"` or `iterations=50`.

    Returns:
        An `Explanation`, which shows itself; of a list, or of an input that has several rows, a
        sequence of them.

    Raises:
        PhotoError: If an input cannot be read.
        ModelError: If there is no such model, or it cannot be explained.
        InputError: If an argument has the wrong form, or the preprocessing is not known.
        TargetError: If the model has no such target.
    """
    _check_names(settings)
    options = ModelOptions(weights, classes, preprocessing, activation, prompts, device)
    question = InputQuestion(asked_targets(target), asked_classes(rather_than), bands)
    sources = photo if isinstance(photo, list) else [photo]
    if not sources:
        raise InputError("the list of photos is empty")
    with _loaded(model, options) as (classifier, explainer_of):
        explainer = explainer_of(settings)
        inputs: list[Photo | ArrayInput] = []
        for number, source in enumerate(sources, 1):
            label = f"{name} {number}" if name and len(sources) > 1 else name
            inputs += read_inputs(source, classifier, question, name=label)
        check_preparation(classifier, inputs, model)
        console = Console() if progress else None
        with progress_bar(console, len(inputs) * explainer.progress_steps) as on_iteration:
            # On a CPU, batches gain little: there, a list is equal to its photos one by one.
            most = None if classifier.move_inputs(torch.empty(0)).is_cuda else 1
            found = list(explain_together(inputs, classifier, explainer, on_iteration, most=most))
    is_several = isinstance(photo, list) or len(found) > 1
    return Explanations(found) if is_several else found[0]


@suggests_keywords
def compare(
    photo: OnePhoto,
    model: AnyModel = None,
    target: Any = None,
    *,
    methods: str | Sequence[str] = "default",
    settings: MethodSettings | None = None,
    rather_than: Any = (),
    weights: str | Path | None = None,
    classes: Sequence[str] | str | Path | None = None,
    preprocessing: Any = None,
    activation: ActivationName | None = None,
    prompts: Sequence[str] = (),
    device: str = "auto",
    name: str = "",
    console: Console | None = None,
    before_slow: Callable[[Comparison], None] | None = None,
) -> Comparison:
    """Run several methods on one photo, and score their maps.

        c = dmbp.compare("photo.jpg", methods=["dmbp", "gradcam"])
        c.scores                                    # insertion, the best first
        c.plot("methods.png")

    Args:
        photo: A photo in any form that `explain` takes.
        model: As for `explain`.
        target: The one thing to explain, as for `explain`.
        methods: Names of `dmbp.methods()`, "all", or "default": the paper's methods and one each of
            the families that came later.
        settings: Settings by method, such as `{"rise": {"masks": 1000}}`.
        rather_than: As for `explain`, as are the next six.
        weights: A file of weights for a model by name.
        classes: The names of the classes.
        preprocessing: How photos become the model's input.
        activation: What turns outputs into probabilities.
        prompts: Texts to compare photos with.
        device: Where a model by name runs.
        name: What pictures and records call the photo.
        console: Where scores are printed as they are known.
        before_slow: Called with what is known before the first method that takes long.

    Returns:
        A `Comparison`, which shows itself.

    Raises:
        InputError: If a method or a setting is unknown, or as for `explain`.
        DMBPError: If no method could be run, or as for `explain`.
    """
    names = _method_names(methods)
    for method, own in (settings or {}).items():
        check_settings(method, own)
    options = ModelOptions(weights, classes, preprocessing, activation, prompts, device)
    with _asked(photo, model, target, rather_than, options, name) as prediction:
        return run_methods(
            prediction, names, settings=settings, console=console, before_slow=before_slow
        )


@suggests_keywords
def sanity(
    photo: OnePhoto,
    model: AnyModel = None,
    target: Any = None,
    *,
    methods: str | Sequence[str] = DEFAULT_METHODS,
    draws: int = 5,
    settings: MethodSettings | None = None,
    rather_than: Any = (),
    weights: str | Path | None = None,
    classes: Sequence[str] | str | Path | None = None,
    preprocessing: Any = None,
    activation: ActivationName | None = None,
    prompts: Sequence[str] = (),
    device: str = "auto",
    name: str = "",
    console: Console | None = None,
) -> SanityCheck:
    """Compare maps before and after the model's last layer is drawn afresh.

    A map that stays the same does not show what the model has learned.

    Args:
        photo: A photo in any form that `explain` takes.
        model: As for `explain`.
        target: The one thing to explain, as for `explain`.
        methods: Names of `dmbp.methods()`, or "all".
        draws: How many random last layers are tried.
        settings: Settings by method.
        rather_than: As for `explain`, as are the next six.
        weights: A file of weights for a model by name.
        classes: The names of the classes.
        preprocessing: How photos become the model's input.
        activation: What turns outputs into probabilities.
        prompts: Texts to compare photos with.
        device: Where a model by name runs.
        name: What pictures and records call the photo.
        console: Where correlations are printed as they are known.

    Returns:
        A `SanityCheck`, which shows itself.

    Raises:
        InputError: If a method or a setting is unknown, or as for `explain`.
        DMBPError: If no method could be run, or as for `explain`.
    """
    names = _method_names(methods)
    for method, own in (settings or {}).items():
        check_settings(method, own)
    options = ModelOptions(weights, classes, preprocessing, activation, prompts, device)
    with _asked(photo, model, target, rather_than, options, name) as prediction:
        return check_sanity(prediction, names, settings=settings, draws=draws, console=console)


@suggests_keywords
def doctor(
    model: AnyModel = None,
    *,
    inputs: Tensor | None = None,
    weights: str | Path | None = None,
    classes: Sequence[str] | str | Path | None = None,
    preprocessing: Any = None,
    device: str = "auto",
    smooth: Smoothing = "tangent",
    sites: Selection = None,
) -> Diagnosis:
    """Check whether a model can be explained, how exactly, and at what cost.

        print(dmbp.doctor(model))

    Args:
        model: As for `explain`. An architecture by name without weights gets random ones.
        inputs: A batch of one input to examine the model on; by default noise of a size that suits
            it.
        weights: A file of weights for a model by name.
        classes: The names of the classes.
        preprocessing: How photos become the model's input.
        device: Where a model by name runs.
        smooth: How smooth activations are frozen, as for `DMBP`.
        sites: Which activations carry masks, as for `DMBP`.

    Returns:
        A `Diagnosis`, which prints itself.

    Raises:
        ModelError: If there is no such model. One that cannot be explained is no error: the
            diagnosis says why.
    """
    options = ModelOptions(weights, classes, preprocessing, device=device, untrained=True)
    with _loaded(model, options) as (classifier, _):
        return diagnose(
            classifier,
            inputs=inputs,
            freezing={"smooth": smooth, "sites": sites},
            has_random_weights=has_random_weights(model, options),
        )


def _method_names(methods: str | Sequence[str]) -> list[str]:
    return parse_method_names(methods if isinstance(methods, str) else ",".join(methods))


def _check_names(settings: Mapping[str, Any]) -> None:
    """Raise an `InputError` for a misspelt argument, before anything is loaded."""
    known = [*DMBPSettings.__annotations__, *inspect.signature(explain).parameters]
    check_keywords(settings, known, "explain takes no argument")
    check_settings("dmbp", {k: v for k, v in settings.items() if k != "reference"})


@contextmanager
def _asked(
    photo: Any, model: Any, target: Any, rather_than: Any, options: ModelOptions, name: str
) -> Generator[Prediction]:
    """Give what a model says about one photo, and what is asked about it."""
    targets = asked_targets(target)
    if len(targets) > 1:
        raise InputError(f"this is about one target, and {len(targets)} were given")
    if isinstance(photo, list):
        raise InputError("this takes one photo: call it for each of the list")
    question = InputQuestion(targets, asked_classes(rather_than))
    with _loaded(model, options) as (classifier, _):
        inputs = read_inputs(photo, classifier, question, name=name)
        check_preparation(classifier, inputs, model)
        only = inputs[0]
        if not isinstance(only, Photo):
            raise InputError(
                "this takes photos, as files, images or arrays; for a tensor, call "
                "dmbp.methods()[name](model).attribute(tensor, target=…)"
            )
        yield only.predict(classifier)


ExplainerOf = Callable[[Mapping[str, Any]], DMBP]

RECENT = 2
"""How many models by name, or modules, are kept with what was found out about them, so that a
second call is faster."""

_recent: OrderedDict[Any, tuple[Classifier, dict[str, DMBP], object]] = OrderedDict()
"""The last entry is the model and its options as given, kept because their `id` is in the key."""

_lock = Lock()


def forget() -> None:
    """Let go of the models that `explain` and the others keep for the next call."""
    with _lock:
        _recent.clear()


@contextmanager
def _loaded(model: Any, options: ModelOptions) -> Generator[tuple[Classifier, ExplainerOf]]:
    """Give a model, loaded or found among the recent ones, and a function that makes its DMBP."""
    module = model.module if isinstance(model, Classifier) else model
    guard = evaluating(module, stacklevel=None) if isinstance(module, nn.Module) else nullcontext()
    with guard:
        key = _key(model, options)
        with _lock:
            entry = _recent.get(key)
        if entry is None:
            entry = (load_classifier(model, options), {}, (model, options))
            with _lock:
                _recent[key] = entry
        with _lock:
            _recent.move_to_end(key)
            while len(_recent) > RECENT:
                _recent.popitem(last=False)
        classifier, explainers, _ = entry

        def explainer_of(settings: Mapping[str, Any]) -> DMBP:
            wanted = repr(sorted(settings.items()))
            if wanted not in explainers or _has_tensors(settings):
                explainers.clear()
                explainers[wanted] = DMBP(classifier.module, **settings)
            return explainers[wanted]

        yield classifier, explainer_of


def _key(model: Any, options: ModelOptions) -> Any:
    """Return what tells a model and its options from others, and from other weights of its own."""
    said = repr(asdict(replace(options, preprocessing=None)))
    preparation = options.preprocessing
    own = preparation if _is_plain(preparation) else id(preparation)
    if model is None or isinstance(model, str | Path):
        return str(model), said, repr(own), _stamps(model, options.weights, options.classes)
    module = model.module if isinstance(model, Classifier) else model
    tensors = [*module.parameters(), *module.buffers()] if isinstance(module, nn.Module) else []
    if any(map(is_lazy, tensors)):
        raise ModelError(
            "the model has lazy layers that have no weights yet: run it once on an example first"
        )
    return id(model), id(module), said, repr(own), fingerprint(tensors)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, Mapping) or type(value).__module__.startswith("dmbp.")


def _stamps(*paths: Any) -> tuple[Any, ...]:
    """Return when files among these were changed."""
    found: list[Any] = []
    for path in paths:
        try:
            status = Path(path).stat()
            found.append((status.st_mtime_ns, status.st_size))
        except (OSError, TypeError, ValueError):
            found.append(None)
    return tuple(found)


def _has_tensors(settings: Mapping[str, Any]) -> bool:
    """Return whether a setting is a tensor or a function, whose text does not tell it apart."""
    return any(isinstance(k, torch.Tensor) or callable(k) for k in settings.values())
