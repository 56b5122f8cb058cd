"""`dmbp compare`: run several methods on one photo, and score their maps.

Maps are scored by insertion; the JSON file also has the scores without the strongest pixels of each
sign (`dmbp.metrics.removal`).

`compare` returns a `Comparison`, which writes the figures and a JSON file. Methods run in the order
of what they cost, so that most scores are known after seconds, and before a method that takes long,
the caller can draw what is known. `leave_out_on_error` and `method_settings` are shared with
`dmbp sanity`.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console

from dmbp.attribution import METHODS, Method
from dmbp.attribution.base import Layer
from dmbp.attribution.registry import RandomOrder
from dmbp.attribution.rise import RISE
from dmbp.attribution.settings import MethodSettings
from dmbp.baseline import baseline_for
from dmbp.devices import synchronise
from dmbp.display import Shown, encode_figure
from dmbp.engine import ForwardPass, ForwardPasses
from dmbp.engine.forward.convolution import has_onednn
from dmbp.errors import DMBPError, SiteError
from dmbp.files import write_all_or_none
from dmbp.linear import Linearizer
from dmbp.metrics import (
    Removal,
    area,
    insertion_curve,
    pixel_ranks,
    removal,
    replace_pixels,
)
from dmbp.metrics.insertion import STEPS
from dmbp.metrics.removal import SHARE
from dmbp.models import Classifier
from dmbp.models.classifier import run_model
from dmbp.render import (
    ComparedMap,
    InsertedPhoto,
    PanelStyle,
    draw_comparison,
    draw_insertion,
    format_duration,
)
from dmbp.workflows.prediction import Prediction, encode_record

QUICK_SETTINGS: MethodSettings = {"rise": {"masks": 1000}}
LEFT_OUT_IF_QUICK = ("lpr", "dmbp_paper")
"""What a quick comparison changes: the three slowest methods have fewer masks or are left out."""

FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)
"""Fractions of inserted pixels at which the insertion figure shows the photo."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Shown):
    """The maps of several methods for a prediction's first target, in the order they were run.

    It shows itself in a notebook, by `show()` and by `plot("methods.png")`. Insertion follows the
    probability of `ExplainedTarget.likely`: the class, also if it is explained rather than others,
    because a difference of probabilities would be harder to read.
    `refusals` maps the name of each method that could not be run to the reason, and `layers` that
    of each method that shows a layer to the layer.
    """

    prediction: Prediction
    maps: Mapping[str, ComparedMap]
    attributions: Mapping[str, torch.Tensor]
    removals: Mapping[str, Removal]
    refusals: Mapping[str, str]
    settings: MethodSettings
    capture_seconds: float
    layers: Mapping[str, Layer]

    def __repr__(self) -> str:
        """Say which method scored how much."""
        scores = ", ".join(f"{name} {score:.3f}" for name, score in self.scores.items())
        return f"<Comparison on {self.prediction.name}, insertion: {scores}>"

    @property
    def scores(self) -> dict[str, float]:
        """Each method's insertion score, the best first; 1 is best."""
        ranked = sorted(self.maps.items(), key=lambda item: -item[1].score)
        return {name: item.score for name, item in ranked}

    def figure(self, style: PanelStyle | None = None) -> Figure:
        """Return a picture of all maps side by side, best insertion score first.

        Args:
            style: How it looks.
        """
        prediction, target = self.prediction, self.prediction.targets[0]
        caption = f"the photo\n{prediction.verdict()}"
        maps = list(self.maps.values())
        return draw_comparison(prediction.photo, caption, maps, target.label(), style)

    def insertion_figure(self) -> Figure:
        """Return a picture of the insertion curves, with the photos they belong to."""
        maps, curve = list(self.maps.values()), self.prediction.targets[0].curve
        return draw_insertion(self._strips(), maps, curve)

    def write(
        self, folder: Path, stem: str, style: PanelStyle | None = None, *, suffix: str = ".png"
    ) -> list[Path]:
        """Write both figures and a JSON file of scores, and return the files' paths."""
        files = {
            folder / f"{stem}-methods{suffix}": encode_figure(self.figure(style), suffix),
            folder / f"{stem}-insertion{suffix}": encode_figure(self.insertion_figure(), suffix),
            folder / f"{stem}-methods.json": encode_record(self.to_dict()),
        }
        write_all_or_none(files)
        return list(files)

    def _strips(self) -> dict[str, dict[float, InsertedPhoto]]:
        """Return strips for the best method, and for the best and worst of another class."""
        best, *rest = sorted(self.maps, key=lambda name: -self.maps[name].score)
        others = [name for name in rest if METHODS[name].method is not METHODS[best].method]
        shown = dict.fromkeys([best, *others[:1], *others[-1:]])
        return {self.maps[name].title: self._strip(name) for name in shown}

    def _strip(self, name: str) -> dict[float, InsertedPhoto]:
        """Return the photo by fraction of inserted pixels, the method's strongest first."""
        prediction, inputs = self.prediction, self.prediction.inputs
        ranks = pixel_ranks(self.attributions[name], inputs)
        blurred = baseline_for(inputs, "blur")
        strip: dict[float, InsertedPhoto] = {}
        for fraction in FRACTIONS:
            part = torch.tensor([fraction], device=inputs.device)
            photo = replace_pixels(inputs, blurred, ranks, part)
            (outputs,), _ = run_model(prediction.classifier, photo)
            value = prediction.curve_value(prediction.targets[0], outputs)
            strip[fraction] = InsertedPhoto(prediction.denormalise(photo[0]), value)
        return strip

    def to_dict(self) -> dict[str, Any]:
        """Return all scores as plain values; it is what `dmbp compare` writes as JSON."""
        prediction = self.prediction
        return {
            "photo": prediction.name,
            "model": prediction.classifier.name,
            "target": prediction.targets[0].record(),
            "insertion": {"steps": STEPS, "substrate": "blur"},
            "removal": {"share": SHARE, "substrate": "blur"},
            "capture_seconds": round(self.capture_seconds, 4),
            "methods": {
                name: {
                    "settings": {**METHODS[name].settings, **self.settings.get(name, {})},
                    **self._layer_record(name),
                    "insertion": item.score,
                    "removal": _removal_record(self.removals[name]),
                    "seconds": round(item.seconds, 4),
                    "curve": list(item.curve),
                }
                for name, item in self.maps.items()
            },
            "refused": dict(self.refusals),
        }

    def _layer_record(self, name: str) -> dict[str, Any]:
        layer = self.layers.get(name)
        if layer is None:
            return {}
        return {"layer": {"name": layer.name, "size": list(layer.size)}}


def compare(
    prediction: Prediction,
    names: Sequence[str],
    *,
    settings: MethodSettings | None = None,
    console: Console | None = None,
    linearizer: Linearizer | None = None,
    before_slow: Callable[[Comparison], None] | None = None,
) -> Comparison:
    """Run methods on a photo for its first target, and score each map.

    Args:
        prediction: The photo and the model.
        names: Names of `dmbp.methods()`.
        settings: Settings by method.
        console: Where to print scores, and why a method was left out.
        linearizer: Captures of the model that earlier calls have made, to be used again.
        before_slow: Called once with what is known, before the first method that may take more than
            `ANNOUNCED` seconds.

    Returns:
        The maps and scores in the order of `names`, and the methods that could not be run on the
        model.

    Raises:
        SiteError: If the model has no such sites.
        DMBPError: If no method could be run.
    """
    classifier = prediction.classifier
    settings = {**(settings or {}), **_in_16_bits(prediction, names, settings or {})}
    # All are constructed before any is run: a wrong setting is an error, not a reason to leave
    # a method out.
    methods = {
        name: METHODS[name](
            classifier.module, **method_settings(name, classifier, settings.get(name, {}))
        )
        for name in names
    }
    # All methods share one capture, so that its time is not counted as the first method's.
    shared = linearizer or Linearizer(classifier.module)
    started = time.perf_counter()
    with suppress(DMBPError):
        shared.linearize(prediction.inputs, target=prediction.targets[0].target)
    capture_seconds = time.perf_counter() - started
    for name, method in methods.items():
        method.linearizer.share_captures(shared)
        if "sites" in settings.get(name, {}):
            _check_sites(method, prediction)
    forward = _forward_pass(prediction, shared)
    seconds = seconds_of_run(prediction, forward)
    maps: dict[str, ComparedMap] = {}
    attributions: dict[str, torch.Tensor] = {}
    removals: dict[str, Removal] = {}
    refusals: dict[str, str] = {}
    layers: dict[str, Layer] = {}

    def known() -> Comparison:
        done = [name for name in names if name in maps]
        return Comparison(
            prediction,
            {name: maps[name] for name in done},
            {name: attributions[name] for name in done},
            {name: removals[name] for name in done},
            dict(refusals),
            settings,
            capture_seconds,
            dict(layers),
        )

    for name, method in sorted(methods.items(), key=lambda item: expected_runs(item[1])):
        with leave_out_on_error(name, refusals, console, is_only=len(names) == 1):
            expected = expected_runs(method) * seconds
            if expected > ANNOUNCED:
                if before_slow is not None and maps:
                    before_slow(known())
                    before_slow = None
                _announce(name, method, expected, console)
            attributions[name], taken = _run_timed(method, prediction)
            removals[name] = _remove_pixels(prediction, attributions[name])
            maps[name] = _score(name, prediction, attributions[name], taken, forward)
            if method.used_layer is not None:
                layers[name] = method.used_layer
            if console is not None:
                note = " of pixels row by row: its map is blank" if maps[name].is_blank else ""
                score = f"insertion {maps[name].score:.3f}{note}"
                layer = f", layer {layers[name]}" if name in layers else ""
                console.print(f"{name}: {score}, {format_duration(taken)}{layer}")
    if not maps:
        raise DMBPError(next(iter(refusals.values())))
    return known()


def _check_sites(method: Method, prediction: Prediction) -> None:
    """Raise a `SiteError` if the model has no such sites, before any other method is run."""
    try:
        method.linearizer.linearize(prediction.inputs, target=prediction.targets[0].target)
    except SiteError:
        raise
    except DMBPError:  # a reason to leave the method out when its turn has come
        return


MANY_MASKS = 1000
"""Over so many masks RISE's rounding averages out: on photographs and the built-in model, maps in
bfloat16 correlate by .9998 with those in float32."""


def _in_16_bits(
    prediction: Prediction, names: Sequence[str], settings: MethodSettings
) -> MethodSettings:
    """Return settings with which methods of many masks run in 16 bits, if the CPU is fast at it."""
    inputs = prediction.inputs
    if inputs.dtype != torch.float32 or not has_onednn(inputs.device, torch.bfloat16):
        return {}
    return {
        name: {"precision": "bfloat16", **settings.get(name, {})}
        for name in names
        if METHODS[name].method is RISE
        and settings.get(name, {}).get("masks", MANY_MASKS) >= MANY_MASKS
    }


def _forward_pass(prediction: Prediction, shared: Linearizer) -> ForwardPass | None:
    """Return a faster way to run the model on many images, if it is captured and there is one."""
    inputs = prediction.inputs
    captured = shared.captured_graph(inputs)
    if captured is None:
        return None
    return ForwardPasses().find(captured, inputs, shared.runner.outputs(inputs))


def make_quick(
    names: Sequence[str], settings: MethodSettings, *, are_all: bool
) -> tuple[list[str], MethodSettings, str]:
    """Return the methods and settings of a quick comparison, and a sentence that says what changed.

    Args:
        names: The methods that were asked for.
        settings: Their settings; those that are given stay as they are.
        are_all: Whether nobody chose the methods, so that some may be left out.
    """
    left_out = [name for name in names if are_all and name in LEFT_OUT_IF_QUICK]
    left_out = [name for name in left_out if name not in settings]
    kept = [name for name in names if name not in left_out]
    changed = dict(settings)
    said: list[str] = []
    for name, quick in QUICK_SETTINGS.items():
        own = {k: v for k, v in quick.items() if k not in settings.get(name, {})}
        if name in kept and own:
            changed[name] = {**settings.get(name, {}), **own}
            usual = {k: getattr(METHODS[name](torch.nn.Identity()), k) for k in own}
            said += [f"{name} has {v:,} {k} in place of {usual[k]:,}" for k, v in own.items()]
    if left_out:
        said.append(f"{' and '.join(left_out)} are left out")
    return kept, changed, f"quick: {'; '.join(said) or 'nothing to change'}"


@contextmanager
def leave_out_on_error(
    name: str, refusals: dict[str, str], console: Console | None, *, is_only: bool
) -> Generator[None]:
    """Leave a method out if it cannot be run on a model, and add the reason to `refusals`.

    If it is the only method, the error is raised.
    """
    try:
        yield
    except SiteError:  # the user mistyped the name of a site
        raise
    except DMBPError as error:
        if is_only:
            raise
        refusals[name] = str(error)
        if console is not None:
            console.print(f"{name}: left out: {error}")


def method_settings(
    name: str, classifier: Classifier, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a method's settings, with what it needs to know about the model."""
    spec = METHODS[name]
    activation = {"activation": classifier.activation} if spec.probabilistic else {}
    classes = {"classes": classifier.classes} if spec.named else {}
    return {**activation, **classes, **overrides}


ANNOUNCED = 20.0
"""From so many seconds on, it is said beforehand how long a method may take."""

TIMED_IMAGES = 8
"""On how many images the model is timed; for one alone, each takes longer."""

RUNS_OF_A_STEP = {"iterations": 5, "steps": 4, "samples": 4}
"""What a step of a method with a setting of this name costs: in runs of the model on one image, on
a CPU. A step of DMBP runs two images forwards and one backwards."""


def expected_runs(method: Method) -> int:
    """Return in about how many runs of the model on one image a method takes as long.

    It is said by the number of images it needs and of its steps; others count as one run.
    """
    total = method.run_count
    for name, runs in RUNS_OF_A_STEP.items():
        for owner in (method, getattr(method, "settings", None)):
            steps = getattr(owner, name, None)
            if isinstance(steps, int) and name != method.run_setting:
                total += runs * steps
    return max(total, 1)


def seconds_of_run(prediction: Prediction, forward: ForwardPass | None = None) -> float:
    """Return how long the model takes for an image of several, in seconds."""
    images = prediction.inputs.expand(TIMED_IMAGES, *prediction.inputs.shape[1:])

    def run(images: torch.Tensor) -> None:
        if forward is None:
            run_model(prediction.classifier, images)
        else:
            forward(images)

    taken: list[float] = []
    for _ in range(2):  # the first run prepares kernels
        started = time.perf_counter()
        with suppress(DMBPError, RuntimeError):  # a model that takes one image at a time
            run(images)
        synchronise(images.device)
        taken.append(time.perf_counter() - started)
    return min(taken) / TIMED_IMAGES


def _announce(name: str, method: Method, seconds: float, console: Console | None) -> None:
    """Say how long a method may take."""
    if console is None:
        return
    if not method.run_setting:
        console.print(f"{name} may take {format_duration(seconds)}")
        return
    fewer = method.run_count // 6
    console.print(
        f"{name} runs the model on {method.run_count:,} images, which may take "
        f"{format_duration(seconds)}; with --set {name}.{method.run_setting}={fewer}, a sixth "
        "of that"
    )


def _run_timed(method: Method, prediction: Prediction) -> tuple[torch.Tensor, float]:
    started = time.perf_counter()
    attribution = method.attribute(prediction.inputs, target=prediction.targets[0].target)
    synchronise(attribution.device)
    return attribution, time.perf_counter() - started


def _score(
    name: str,
    prediction: Prediction,
    attribution: torch.Tensor,
    seconds: float,
    forward: ForwardPass | None,
) -> ComparedMap:
    classifier = prediction.classifier
    curve = insertion_curve(
        classifier.module,
        prediction.inputs,
        prediction.targets[0].likely,
        attribution,
        activation=classifier.activation,
        run=forward,
    )
    return ComparedMap(
        title=METHODS[name].title,
        attribution=attribution[0].sum(0).cpu().double().numpy(),
        curve=curve[0].tolist(),
        score=float(area(curve)),
        seconds=seconds,
        is_control=METHODS[name].method is RandomOrder,
    )


def _remove_pixels(prediction: Prediction, attribution: torch.Tensor) -> Removal:
    classifier = prediction.classifier
    return removal(
        classifier.module,
        prediction.inputs,
        prediction.targets[0].target,
        attribution,
        activation=classifier.activation,
    )


def _removal_record(found: Removal) -> dict[str, float | bool | None]:
    """Return all values of one photo; "blue_true" is None if the map claims no blue."""
    claims_blue = bool(found.claims_blue)
    return {
        **{name: float(values) for name, values in vars(found).items()},
        "red_true": bool(found.red_true),
        "claims_blue": claims_blue,
        "blue_true": bool(found.blue_true) if claims_blue else None,
    }
