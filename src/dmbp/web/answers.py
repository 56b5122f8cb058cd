"""The process that owns the model, and its answers to each kind of ask.

Answers are plain values for JSON. Pictures in them are data URLs, and maps are base64: the page
draws the evidence itself, so that colours and threshold follow the hand.
"""

import shlex
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor

from dmbp import __version__
from dmbp.attribution import DMBP, METHODS
from dmbp.attribution.registry import MethodName
from dmbp.baseline import baseline_for
from dmbp.data import sample_photos
from dmbp.decompose import Decomposition
from dmbp.decompose.tested import moved_elsewhere
from dmbp.display import encode_figure
from dmbp.errors import DMBPError, InputError, ModelError, PhotoError, require_known
from dmbp.linear import Linearizer
from dmbp.linear.targets import read_target
from dmbp.metrics import area
from dmbp.models import Classifier
from dmbp.models.classifier import run_model
from dmbp.render import PanelStyle
from dmbp.render.colour import Array
from dmbp.render.report import report_page
from dmbp.web.asks import Ask
from dmbp.web.decoding import Pixels
from dmbp.web.store import OpenedPhoto, SeenPhoto
from dmbp.web.worker_process import Report, refusal_of
from dmbp.workflows.batches import explain_photo
from dmbp.workflows.compare import compare, expected_runs, method_settings, seconds_of_run
from dmbp.workflows.explain import result_stem
from dmbp.workflows.explained_target import (
    ClassTarget,
    ExplainedTarget,
    NamedClass,
    explained_targets,
)
from dmbp.workflows.explanation import PhotoExplanation, report_heading
from dmbp.workflows.prediction import ModelSpec, Prediction, run_on_view
from dmbp.workflows.sanity import check_sanity
from dmbp.workflows.sources import Photo

KEPT = 8
"""How many explanations are kept, so that files about them need no second explanation."""

TOP = 5
SANITY_DRAWS = 3

FIRST_METHODS: tuple[MethodName, ...] = (
    "random",
    "gradient",
    "guided_backprop",
    "gradcam",
    "deeplift",
    "lrp_gamma",
    "integrated_gradients",
    "occlusion",
    "dmbp",
)
"""The methods that the page offers first: one of each family, and the control."""

_SAMPLE = 'from dmbp.data import sample_photos; sample_photos()["{}"][0]'
"""The Python code of a sample photo, by its name."""

TOGETHER = {"cuda": 16}
"""How many explanations of one shape are computed together; on a CPU that would gain nothing."""


@dataclass(frozen=True)
class Upload:
    """A decoded photo that is opened."""

    digest: str
    name: str
    pixels: Pixels


@dataclass(frozen=True)
class Asked:
    """An ask, and the photo that it is about."""

    ask: Ask
    photo: SeenPhoto


@dataclass(frozen=True)
class Content:
    """A file to take away."""

    name: str
    media_type: str
    content: bytes


@dataclass(frozen=True)
class Facts:
    """What the page is told about the model, and the sample photos, opened.

    `takes_deep` says whether greyscale photos keep 16 bits.
    """

    page: dict[str, Any]
    samples: tuple[tuple[OpenedPhoto, str | None], ...]
    takes_deep: bool
    together: int


@dataclass(frozen=True)
class _ViewedPhoto(Photo):
    """A photo of which only the view is left."""

    seen: SeenPhoto | None = None

    def predict(self, classifier: Classifier) -> Prediction:
        """Run the model on the view."""
        assert self.seen is not None
        prediction = _prediction(self.seen, classifier)
        asked = explained_targets(
            prediction.classifier, prediction.context, self.targets, self.rather_than
        )
        return replace(prediction, targets=asked)


def _prediction(seen: SeenPhoto, classifier: Classifier) -> Prediction:
    # The photo's pixels are not kept; those of this stand-in are never touched.
    photo = Image.new("1", seen.size, None)
    return run_on_view(seen.view.image(), photo, seen.name, classifier)


class ModelService:
    """Answers asks about photos with one model.

    Args:
        spec: The model.
        settings: DMBP's settings, such as `preset`.
    """

    def __init__(self, spec: ModelSpec, settings: Mapping[str, Any]) -> None:
        self._spec, self._settings = spec, dict(settings)
        self._classifier = spec.load()
        if self._classifier.input_shape is not None:
            raise InputError(
                f"{self._classifier.name} takes inputs of shape {self._classifier.input_shape}, "
                "and the page is for photos: use `dmbp explain`"
            )
        if self._classifier.is_encoder:
            raise ModelError(
                f"{self._classifier.name} gives embeddings: give --prompt, so that photos are "
                "compared with texts"
            )
        self._explainer = DMBP(self._classifier.module, **settings)
        self._linearizer = Linearizer(self._classifier.module)
        self._kept: OrderedDict[tuple[Any, ...], PhotoExplanation] = OrderedDict()
        self._samples: set[str] = set()
        self._style = PanelStyle()
        self._kinds: Mapping[str, Callable[[Asked, Report], Any]] = {
            "region": self._region,
            "method": self._method,
            "sanity": self._sanity,
            "file": self._file,
        }

    def facts(self) -> Facts:
        """Return what the page is told, and open the sample photos."""
        classifier, palette = self._classifier, self._style.palette
        ramp = palette.colormap(numpy.linspace(0, 1, 256))[:, :3]
        page = {
            "model": classifier.name,
            "classes": None if classifier.classes is None else list(classifier.classes),
            "methods": self._methods(),
            "settings": self._settings,
            "version": __version__,
            "faint": self._style.faint,
            "ramp": numpy.round(ramp * 255).astype(int).ravel().tolist(),
        }
        kind = classifier.move_inputs(torch.zeros(1)).device.type
        return Facts(
            page,
            tuple(self._open_samples()),
            takes_deep=len(classifier.preprocessing.mean) == 1,
            together=TOGETHER.get(kind, 1),
        )

    def _methods(self) -> list[dict[str, Any]]:
        """Return the methods, those that take least time first, with about how many seconds."""
        blank = self._classifier.preprocessing.view(Image.new("RGB", (64, 64)))
        seen = SeenPhoto("", "blank", blank.size, Pixels.of(blank))
        seconds = seconds_of_run(_prediction(seen, self._classifier))
        module = self._classifier.module
        found: list[dict[str, Any]] = []
        for name, row in METHODS.items():
            method = row(module, **method_settings(name, self._classifier, {}))
            found.append(
                {
                    "name": name,
                    "title": row.title,
                    "first": name in FIRST_METHODS,
                    "seconds": round(expected_runs(method) * seconds, 3),
                }
            )
        return sorted(found, key=lambda method: method["seconds"])

    def _open_samples(self) -> list[tuple[OpenedPhoto, str | None]]:
        """Open the sample photos; without scikit-image there are none."""
        try:
            photos = sample_photos()
        except PhotoError:
            return []
        opened: list[tuple[OpenedPhoto, str | None]] = []
        known = {name.lower() for name in self._classifier.classes or ()}
        for name, (image, targets) in photos.items():
            pixels = Pixels.of(image)
            upload = Upload(sha256(pixels.content).hexdigest(), name, pixels)
            self._samples.add(upload.digest)
            target = targets[0] if targets[0] in known else None
            opened.append((self._open(upload), target))
        return opened

    def answer(self, kind: str, asks: Sequence[Any], report: Report) -> list[Any]:
        """Return an answer, or why there is none, for each ask."""
        if kind == "explain":
            return self._explain(asks, report)
        answers: list[Any] = []
        for ask in asks:
            try:
                answers.append(
                    self._open(ask) if kind == "open" else self._kinds[kind](ask, report)
                )
            except DMBPError as error:
                answers.append(refusal_of(error))
        return answers

    def _open(self, upload: Upload) -> OpenedPhoto:
        """Keep what the model sees of a photo, and say what it predicts."""
        pixels = upload.pixels
        view = self._classifier.preprocessing.view(pixels.image())
        seen = SeenPhoto(upload.digest, upload.name, pixels.size, Pixels.of(view))
        prediction = _prediction(seen, self._classifier)
        record: dict[str, Any] = {
            "digest": seen.digest,
            "name": seen.name,
            "size": list(seen.size),
            "view": _png(prediction.photo),
            "verdict": prediction.verdict(),
            "outputs": int(prediction.outputs.numel()),
            "top": self._top(prediction),
            "independent": prediction.has_independent_classes,
        }
        return OpenedPhoto(seen, record)

    def _top(self, prediction: Prediction) -> list[dict[str, Any]] | None:
        if not prediction.gives_classes:
            return None
        outputs, classifier = prediction.outputs, prediction.classifier
        best = outputs.topk(min(TOP, len(outputs))).indices.tolist()
        return [_class_record(NamedClass.of(classifier, outputs, index)) for index in best]

    def _explain(self, asks: Sequence[Asked], report: Report) -> list[Any]:
        """Explain photos of one shape together, each as if it were alone."""
        answers: list[Any] = [None] * len(asks)
        predictions: dict[int, Prediction] = {}
        for index, asked in enumerate(asks):
            try:
                predictions[index] = self._predict(asked)
            except DMBPError as error:
                answers[index] = refusal_of(error)
        alone = [k for k, found in predictions.items() if len(found.targets) != 1]
        together = [k for k in predictions if k not in alone]
        groups = ([together] if together else []) + [[k] for k in alone]
        for group in groups:
            try:
                found = self._explain_together([asks[k] for k in group], report)
                for index, explanation in zip(group, found, strict=True):
                    answer = self._explained(asks[index], explanation)
                    answers[index] = {**answer, "together": len(group)}
            except DMBPError as error:
                for index in group:
                    answers[index] = refusal_of(error)
        return answers

    def _predict(self, asked: Asked) -> Prediction:
        return self._photo(asked).predict(self._classifier)

    def _photo(self, asked: Asked) -> _ViewedPhoto:
        ask, seen = asked.ask, asked.photo
        targets = [] if ask.target is None else [_no_files(ask.target)]
        name = seen.name
        return _ViewedPhoto(
            name, result_stem(Path(name)), seen.view.image(), targets, ask.rather_than, seen
        )

    def _explain_together(self, asks: Sequence[Asked], report: Report) -> list[PhotoExplanation]:
        """Explain photos in one batch, unless there is only one."""
        advance = _Steps(self._explainer, report)
        if len(asks) == 1:
            return [self._explanation(asks[0], advance)]
        started = perf_counter()
        predictions = [self._predict(asked) for asked in asks]
        decomposition = self._explainer.explain(
            torch.cat([prediction.inputs for prediction in predictions]),
            target=[prediction.targets[0].target for prediction in predictions],
            on_iteration=advance,
        )
        advance.seconds["explaining"] = perf_counter() - started
        described = self._explainer.described()
        found: list[PhotoExplanation] = []
        for row, (asked, prediction) in enumerate(zip(asks, predictions, strict=True)):
            explanation = PhotoExplanation(
                prediction, _one_row(decomposition, row), described, dict(advance.seconds)
            )
            self._keep(asked, explanation)
            found.append(explanation)
        return found

    def _explanation(self, asked: Asked, advance: Callable[[], None]) -> PhotoExplanation:
        """Return an explanation, which may have been kept."""
        key = _key(asked)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        found = explain_photo(self._photo(asked), self._classifier, self._explainer, advance)
        assert isinstance(found, PhotoExplanation)
        self._keep(asked, found)
        return found

    def _keep(self, asked: Asked, explanation: PhotoExplanation) -> None:
        self._kept[_key(asked)] = explanation
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def _explained(self, asked: Asked, explanation: PhotoExplanation) -> dict[str, Any]:
        """Return an explanation of the first target for the page."""
        prediction, d = explanation.prediction, explanation.decomposition
        target, row = prediction.targets[0], explanation.rows()[0]
        removal, palette = explanation.removals_found[0], self._style.palette
        test = explanation.tests[0]
        curve = explanation.insertion_curves[0]
        blurred = prediction.denormalise(baseline_for(d.inputs[:1], "blur")[0])
        strength = numpy.round(127 * numpy.clip(self._style.evidence(row.attribution), -1, 1))
        return {
            "digest": asked.photo.digest,
            "photo": asked.photo.name,
            "target": asked.ask.target,
            "rather_than": list(asked.ask.rather_than),
            "name": target.name,
            "label": target.label(decimals=explanation.decimals),
            "class": _class_record(target.subject) if isinstance(target, ClassTarget) else None,
            "others": [_class_record(k) for k in target.others]
            if isinstance(target, ClassTarget)
            else [],
            "verdict": prediction.verdict(decimals=explanation.decimals),
            "sentence": test.sentence(palette, row.words),
            "score_words": target.score_words(),
            "score": removal.test.whole.score,
            "worth_for": removal.worth_for,
            "worth_against": removal.worth_against,
            "confirmed": not removal.test.refuted,
            "size": list(row.attribution.shape),
            "worth": _base64(row.attribution.astype("<f4")),
            "strength": _base64(strength.astype("i1")),
            "blurred": _png(blurred),
            "changed": [
                {
                    "picture": _jpeg(changed.picture),
                    "title": changed.title,
                    "colour": changed.colour,
                    "outlines": [
                        " ".join(f"{x:.1f},{y:.1f}" for x, y in line) for line in changed.outlines
                    ],
                }
                for changed in row.changed_photos(palette)
            ],
            "region": [" ".join(f"{x:.1f},{y:.1f}" for x, y in k) for k in row.region_lines],
            "curve": {
                "title": target.curve.title,
                "in_percent": target.curve.in_percent,
                "values": curve,
                "score": float(area(torch.tensor(curve)[None])),
            },
            "exactness": d.exactness,
            "seconds": round(explanation.seconds["explaining"], 2),
            "command": self._command(asked),
            "python": self._python(asked, target),
        }

    def _region(self, asked: Asked, report: Report) -> dict[str, Any]:
        """Ask the model about the photo without a painted region, and without it elsewhere."""
        del report
        prediction = self._predict(asked)
        inputs, target = prediction.inputs, prediction.targets[0]
        mask = _unpacked(asked.ask.region or b"", tuple(inputs.shape[2:])).to(inputs.device)
        elsewhere = moved_elsewhere(mask)
        blurred, mean = (baseline_for(inputs, kind) for kind in ("blur", "mean"))
        shown = torch.cat(
            [
                inputs,
                torch.where(mask, blurred, inputs),
                torch.where(mask, mean, inputs),
                torch.where(elsewhere, blurred, inputs),
            ]
        )
        outputs, _ = run_model(prediction.classifier, shown)
        found = [
            {"score": _score(target.target, k), "value": prediction.curve_value(target, k)}
            for k in outputs
        ]
        names = ("whole", "without", "mean", "elsewhere")
        return {
            "digest": asked.photo.digest,
            "name": target.curve.name,
            "in_percent": target.curve.in_percent,
            "share": float(mask.double().mean()),
            **dict(zip(names, found, strict=True)),
        }

    def _method(self, asked: Asked, report: Report) -> dict[str, Any]:
        """Run one method, and score its map."""
        name = asked.ask.method or ""
        require_known("method", name, METHODS)
        report(0, 1, METHODS[name].title)
        prediction = self._predict(asked)
        found = compare(prediction, [name], linearizer=self._linearizer).maps[name]
        picture = self._style.evidence_image(found.attribution, prediction.photo)
        return {
            "digest": asked.photo.digest,
            "method": name,
            "title": found.name,
            "picture": _jpeg(picture),
            "score": found.score,
            "seconds": found.seconds,
            "blank": found.is_blank,
        }

    def _sanity(self, asked: Asked, report: Report) -> dict[str, Any]:
        """Compare DMBP's map with those of models whose last layer is random."""
        report(0, 1, "the last layer is replaced by random ones")
        prediction = self._predict(asked)
        settings = {"dmbp": self._settings}
        found = check_sanity(prediction, ["dmbp"], settings=settings, draws=SANITY_DRAWS)
        row = found.rows["dmbp"]
        pictures = [
            _jpeg(self._style.evidence_image(values, prediction.photo))
            for values in (row.before, row.after)
        ]
        return {
            "digest": asked.photo.digest,
            "before": pictures[0],
            "after": pictures[1],
            "draws": SANITY_DRAWS,
            "mean": row.mean,
            "verdict": row.verdict,
        }

    def _file(self, asked: Asked, report: Report) -> Content:
        """Return a file about an explanation."""
        explanation = self._explanation(asked, _Steps(self._explainer, report))
        stem = _stem(asked.photo, explanation.prediction.targets[0])
        return _FILES[asked.ask.file or ""](explanation, stem)

    def _command(self, asked: Asked) -> str:
        """Return the command that explains the same photo on the command line."""
        ask, name = asked.ask, self._file_name(asked.photo)
        words = ["dmbp", "explain", name, *self._model_options]
        words += [] if ask.target is None else ["--target", ask.target]
        for other in ask.rather_than:
            words += ["--rather-than", other]
        for setting, value in self._settings.items():
            if (setting, value) != ("preset", "tested"):
                words += [f"--{setting.replace('_', '-')}", str(value)]
        command = shlex.join(words)
        if asked.photo.digest not in self._samples:
            return command
        code = f'{_SAMPLE.format(asked.photo.name)}.save("{name}")'
        return f"{shlex.join(['python', '-c', code])}\n{command}"

    def _file_name(self, photo: SeenPhoto) -> str:
        """Return the photo's name as an argument of a command; sample photos are saved first."""
        name = f"{photo.name}.png" if photo.digest in self._samples else photo.name
        return f"./{name}" if name.startswith("-") else name

    @cached_property
    def _model_options(self) -> list[str]:
        spec = self._spec
        named = {
            "--model": spec.model,
            "--weights": spec.weights,
            "--classes": spec.classes,
            "--device": None if spec.device == "cpu" else spec.device,
            "--input-name": spec.ends.input,
            "--output-name": spec.ends.output,
        }
        words = [word for name, value in named.items() if value for word in (name, str(value))]
        for name in spec.inputs.given:
            value = getattr(spec.inputs, name)
            several = isinstance(value, tuple)
            text = ("x" if name == "size" else ",").join(map(str, value)) if several else str(value)
            words += [f"--{name}", text]
        for prompt in spec.prompts:
            words += ["--prompt", prompt]
        return words + ["--trust-model-file"] * spec.trust_model_file

    def _python(self, asked: Asked, target: ExplainedTarget) -> str:
        """Return the Python code that makes the same map."""
        spec, ask, photo = self._spec, asked.ask, asked.photo
        inputs = {name: getattr(spec.inputs, name) for name in spec.inputs.given}
        options = {
            "model": spec.model,
            "target": ask.target,
            "rather_than": list(ask.rather_than),
            "weights": None if spec.weights is None else str(spec.weights),
            "classes": None if spec.classes is None else str(spec.classes),
            "preprocessing": inputs,
            "prompts": list(spec.prompts),
            "device": spec.device,
            **{k: v for k, v in self._settings.items() if (k, v) != ("preset", "tested")},
        }
        opening = _SAMPLE.format(photo.name) if photo.digest in self._samples else repr(photo.name)
        first, shown = opening.rpartition("; ")[::2]
        given = [f"{name}={value!r}" for name, value in options.items() if value]
        arguments = "".join(f"    {line},\n" for line in (shown, *given))
        picture = f"{_stem(photo, target)}.png"
        return (
            f"import dmbp\n{first and first + chr(10)}\n"
            f"explanation = dmbp.explain(\n{arguments})\n"
            f"explanation.plot({picture!r})\n"
            "explanation.attribution  # what the file .npy holds\n"
        )


class _Steps:
    """Tells of the steps of an explanation, in words."""

    def __init__(self, explainer: DMBP, report: Report) -> None:
        self._iterations, self._of = explainer.settings.iterations, explainer.progress_steps
        self._report, self._step = report, 0
        self.seconds = {"reading": 0.0, "explaining": 0.0}

    def __call__(self) -> None:
        self._step += 1
        windows = self._of - self._iterations
        if self._step <= self._iterations:
            doing = f"iteration {self._step} of {self._iterations}"
        else:
            doing = f"testing windows, {(self._step - self._iterations) / windows:.0%}"
        self._report(self._step, self._of, doing)


def _key(asked: Asked) -> tuple[Any, ...]:
    """Return what an explanation follows from, and the photo's name, which files tell."""
    return *asked.ask.about(asked.photo.digest).question, asked.photo.name


def _one_row(decomposition: Decomposition, row: int) -> Decomposition:
    """Return one row of a decomposition of several images, as if it were the only one."""
    only = slice(row, row + 1)

    def picked(owner: Any, dimension: int = 0) -> dict[str, Any]:
        tensors = {k.name: getattr(owner, k.name) for k in fields(owner)}
        return {
            name: values.narrow(dimension, row, 1)
            for name, values in tensors.items()
            if isinstance(values, Tensor)
        }

    d = decomposition
    return replace(
        d,
        **picked(d),
        history=replace(d.history, **picked(d.history, 1)),
        tested=None if d.tested is None else replace(d.tested, **picked(d.tested)),
        targets=d.targets[only],
        image=(0,),
    )


def _no_files(target: str) -> str:
    """Return a target that names no file of the server's."""
    squeezed = "".join(target.lower().split())
    if any(word in squeezed for word in ("image=", "mask=")):
        raise InputError("targets with files are for the command line: use `dmbp explain`")
    return target


def _stem(photo: SeenPhoto, target: ExplainedTarget) -> str:
    """Return how the names of files about an explanation begin."""
    return f"{result_stem(Path(photo.name))}-{target.slug()}"


def _score(target: Any, outputs: Tensor) -> float:
    flat = outputs.flatten()[None]
    return float(read_target(target, outputs=flat, shape=tuple(outputs.shape)).scores(flat))


def _unpacked(bits: bytes, size: tuple[int, ...]) -> Tensor:
    """Return a mask (1, height, width) from a bit for each pixel."""
    count = size[0] * size[1]
    if len(bits) != (count + 7) // 8:
        raise InputError(f"the region must have a bit for each of {size[1]} × {size[0]} pixels")
    values = numpy.unpackbits(numpy.frombuffer(bits, numpy.uint8))[:count]
    if not values.any():
        raise InputError("nothing is painted: paint over a part of the photo first")
    return torch.from_numpy(values.reshape(1, *size) > 0)


def _class_record(named: NamedClass) -> dict[str, Any]:
    return {"index": named.index, "name": named.name, "probability": named.probability}


def _base64(values: Any) -> str:
    return b64encode(numpy.ascontiguousarray(values).tobytes()).decode()


def _image(picture: Array) -> Image.Image:
    levels = numpy.round(numpy.clip(picture, 0, 1) * 255).astype(numpy.uint8)
    return Image.fromarray(levels)


def _png(picture: Array) -> str:
    buffer = BytesIO()
    _image(picture).save(buffer, "PNG")
    return "data:image/png;base64," + b64encode(buffer.getvalue()).decode()


def _jpeg(picture: Array) -> str:
    buffer = BytesIO()
    _image(picture).save(buffer, "JPEG", quality=90, subsampling=0)
    return "data:image/jpeg;base64," + b64encode(buffer.getvalue()).decode()


def _array_file(explanation: PhotoExplanation, stem: str) -> Content:
    files = explanation.raw_files(Path(), stem)
    content = files[Path(f"{stem}.npy")]
    return Content(f"{stem}.npy", "application/octet-stream", content)


def _picture_file(explanation: PhotoExplanation, stem: str, kind: str, suffix: str) -> Content:
    return Content(f"{stem}{suffix}", kind, encode_figure(explanation.figure(), suffix))


def _report_file(explanation: PhotoExplanation, stem: str) -> Content:
    heading = report_heading(explanation.prediction.classifier, explanation.settings)
    page = report_page(explanation.report_photo(), heading)
    return Content(f"{stem}.html", "text/html", page)


_FILES: Mapping[str, Callable[[PhotoExplanation, str], Content]] = {
    "png": lambda e, stem: _picture_file(e, stem, "image/png", ".png"),
    "svg": lambda e, stem: _picture_file(e, stem, "image/svg+xml", ".svg"),
    "json": lambda e, stem: Content(f"{stem}.json", "application/json", e.record()),
    "npy": _array_file,
    "html": _report_file,
}
"""The files to take away, by their ending."""
