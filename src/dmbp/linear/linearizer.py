"""From a model and inputs to a checked `LinearNetwork`.

    >>> [site.name for site in linearize(model, images, target=3).sites]
    ['1']

A `Linearizer` keeps the captured graph of one model, so that asking again costs no second export.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from dmbp.errors import InexactCapture
from dmbp.linear.capture.composite import with_composite_activations
from dmbp.linear.capture.export import CapturedGraph, capture
from dmbp.linear.freeze.exactness import as_taken, check, check_independence
from dmbp.linear.freeze.freeze import freeze
from dmbp.linear.freeze.secants import secants
from dmbp.linear.lines import Pieces, Smoothing, line_name, line_of, tangent
from dmbp.linear.model.runner import ModelRunner, check_batch
from dmbp.linear.model.signature import ExtraInputs, Output
from dmbp.linear.model.wrappers import Model, evaluating, unwrapped
from dmbp.linear.network import LinearNetwork, run
from dmbp.linear.steps import FrozenGraph, Selection, patterns_of, with_sites
from dmbp.linear.targets import Target, TargetRows, read_target, rows_without_forward
from dmbp.precision import TOLERANCE, full_precision, relative_error
from dmbp.process import silence_output

IMAGES_AT_ONCE = 256
"""That the model is asked about before anything is explained."""


def linearize(
    model: Model,
    inputs: Tensor,
    *,
    target: Target = None,
    smooth: Smoothing = "tangent",
    sites: Selection = None,
    output: Output = None,
    additional_forward_args: Any = None,
) -> LinearNetwork:
    """Freeze `model` at `inputs` and ask for `target`'s score.

    Without a target each image's highest output is asked for. `smooth` is how smooth activations
    are frozen: by their "tangent", by a "secant" through zero, or approximated by `Pieces(k)`, for
    which "pieces:k" may be written.
    `sites` names the activations that carry masks, as `layer4*` does; all, unless given. `output`
    says which of several things the model returns is explained. `additional_forward_args` are its
    other inputs, which are held as they are. Raises a `CaptureError` where the model cannot be
    reproduced exactly.
    """
    linearizer = Linearizer(model, smooth=smooth, sites=sites, output=output)
    return linearizer.linearize(
        inputs, target=target, additional_forward_args=additional_forward_args
    )


class Linearizer:
    """Linearises one model again and again."""

    def __init__(
        self,
        model: Model,
        *,
        smooth: Smoothing = "tangent",
        sites: Selection = None,
        output: Output = None,
    ) -> None:
        self.model = unwrapped(model)
        self._line = line_of(smooth)
        self._selection: Selection = None if sites is None else patterns_of(sites)
        self._asked = ModelRunner(self.model, output=output)
        self._captured: dict[Any, CapturedGraph] = {}
        self._elements: dict[Any, int] = {}
        self._classes: dict[Any, int] = {}

    def __copy__(self) -> "Linearizer":
        """The same; what one of both captures serves the other."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """For a deep copy or another process: without graphs, which are captured anew there."""
        return {**self.__dict__, "_captured": {}}

    @torch.inference_mode(False)
    def linearize(
        self, inputs: Tensor, *, target: Target = None, additional_forward_args: Any = None
    ) -> LinearNetwork:
        """Freeze the model at `inputs` and ask for `target`'s score."""
        check_batch(inputs)
        held = self.held(additional_forward_args, inputs)
        asked = self.holding(held)
        inputs, outputs, rows = asked.rows(inputs, target=target)
        images = torch.tensor(rows.image, device=inputs.device)
        asked = asked.holding(held.pick(rows.image))
        return asked.freeze(inputs[images], outputs[images], rows)

    def held(self, given: Any, inputs: Tensor) -> ExtraInputs:
        """The model's other inputs, as it takes them: for all images alike, or one by one."""
        if given is None:
            return ExtraInputs()
        with silence_output(), evaluating(self.model):
            return as_taken(self._outputs_beside, inputs, ExtraInputs.of(given, images=len(inputs)))

    def described(self) -> dict[str, str]:
        """How the model is frozen, as plain values for a file or a report."""
        sites = "all" if self._selection is None else ", ".join(self._selection)
        return {"smooth": line_name(self._line), "sites": sites}

    def share(self, other: "Linearizer") -> None:
        """Take what another has captured of the same model and output, and capture for both."""
        self._captured = other._captured

    def holding(self, held: ExtraInputs) -> "Linearizer":
        """The same with these as the model's other inputs; what is captured serves both."""
        other = copy.copy(self)
        other._asked = self._asked.holding(held)
        return other

    @full_precision()
    @torch.inference_mode(False)
    def rows(self, inputs: Tensor, *, target: Target = None) -> tuple[Tensor, Tensor, TargetRows]:
        """The inputs as they will be used, the model's outputs there, and the questions asked."""
        with evaluating(self.model):
            inputs = self._asked.checked(inputs)
            outputs = torch.cat(
                [
                    self.holding(self._asked.held.pick(images.tolist())).outputs(inputs[images])
                    for images in torch.arange(len(inputs), device=inputs.device).split(
                        IMAGES_AT_ONCE
                    )
                ]
            )
            self._classes[self._form(inputs)] = outputs.shape[1]
            return inputs, outputs, read_target(target, outputs=outputs)

    @torch.inference_mode(False)
    def foreseen(self, inputs: Tensor, *, target: Target) -> tuple[Tensor, TargetRows] | None:
        """What `rows` says, where that can be told without running the model.

        It has been run on such inputs before, and each image is asked about one class, or one sum
        of them. (If its classes have changed since, `TargetRows.among` will tell.)
        """
        classes = self._classes.get(self._form(inputs))
        if classes is None:
            return None
        rows = rows_without_forward(target, images=len(inputs), classes=classes)
        if rows is None or rows.image != tuple(range(len(inputs))):
            return None
        return self._asked.checked(inputs), rows

    @full_precision()
    @torch.inference_mode(False)
    def freeze(self, inputs: Tensor, outputs: Tensor, rows: TargetRows) -> LinearNetwork:
        """The linear network of some rows, from each row's image and the model's outputs there."""
        with evaluating(self.model):
            frozen, exactness = self._frozen(inputs, outputs)
        approximation_error = relative_error(frozen.output, outputs) if self.approximates else 0.0
        return LinearNetwork(
            frozen, inputs, rows, exactness=exactness, approximation_error=approximation_error
        )

    @property
    def holds(self) -> bool:
        """Whether the model is given other inputs beside the one that is explained."""
        return bool(self._asked.held.values)

    @property
    def approximates(self) -> bool:
        """Whether the linear network is that of an approximation of the model."""
        return isinstance(self._line, Pieces)

    @full_precision()
    @torch.inference_mode(False)
    def between(
        self, inputs: Tensor, outputs: Tensor, baselines: Tensor, rows: TargetRows
    ) -> LinearNetwork:
        """The linear network that is exact at every row's image and at its baseline alike."""
        with evaluating(self.model):
            at_input, exactness = self._frozen(inputs, outputs)
            outputs_there = self.outputs(baselines)
            at_baseline, _ = self._frozen(baselines, outputs_there)
            frozen = secants(at_input, at_baseline, inputs, baselines)
            with torch.no_grad():
                found = run(frozen, [inputs, baselines], None)
        for end, expected in zip(found, (outputs, outputs_there), strict=True):
            error = relative_error(end, expected)
            if error > TOLERANCE[inputs.dtype]:
                raise InexactCapture(
                    f"between input and baseline the network differs from the model by {error:.1e} "
                    "relative: forward() multiplies or compares activations, as attention, layer "
                    "norm, squeeze-and-excitation or x * (x > 0) do, where no slope between two "
                    "inputs exists; use integrated_gradients, and where a ReLU is written by hand, "
                    "use torch.relu"
                )
        return LinearNetwork(frozen, inputs, rows, exactness=exactness)

    @full_precision()
    @torch.inference_mode(False)
    def masked_elements(self, image: Tensor) -> int:
        """How many elements carry a mask for an image like this one."""
        key = (tuple(image.shape[1:]), image.dtype)
        if key not in self._elements:
            with evaluating(self.model):
                frozen, _ = self._frozen(image, self.outputs(image))
            shapes = [step.site.shape for step in frozen.steps if step.site is not None]
            self._elements[key] = sum(math.prod(shape) for shape in shapes)
        return self._elements[key]

    def captured(self, inputs: Tensor) -> CapturedGraph | None:
        """The graph captured for inputs like these, if there is one yet."""
        captured = self._captured.get(self._form(inputs))
        return captured if captured is None or captured.batch in (None, len(inputs)) else None

    def _frozen(self, inputs: Tensor, outputs: Tensor) -> tuple[FrozenGraph, float]:
        captured = self.captured(inputs)
        if captured is not None:
            try:
                return self._checked_frozen(captured, inputs, outputs)
            except InexactCapture:
                # The model has changed since: a new head, another attribute. Capture it anew.
                del self._captured[self._form(inputs)]
        captured = with_composite_activations(
            capture(self._asked.adapted(inputs), inputs, held=self._asked.held)
        )
        frozen, exactness = self._checked_frozen(captured, inputs, outputs)
        check_independence(self._outputs_beside, inputs, self._asked.held, outputs)
        self._captured[self._form(inputs)] = captured
        return frozen, exactness

    def _checked_frozen(
        self, captured: CapturedGraph, inputs: Tensor, outputs: Tensor
    ) -> tuple[FrozenGraph, float]:
        """The graph frozen at the inputs, and the error of its output.

        Pieces are another model's; then it is tangents that are held to the model's outputs.
        """
        line = tangent if self.approximates else self._line
        others = self._asked.held.beside(len(inputs))
        captured = captured.holding([others[k] for k in self._asked.held.tensors])
        frozen = freeze(captured, inputs, line=line)
        exactness = check(captured, frozen, inputs, outputs, line=line)
        if self.approximates:
            frozen = freeze(captured, inputs, line=self._line)
        return with_sites(frozen, self._selection), exactness

    @torch.no_grad()
    def frozen_by(self, captured: CapturedGraph, inputs: Tensor) -> FrozenGraph:
        """A captured graph frozen at other inputs, as this one freezes; not checked."""
        return with_sites(freeze(captured, inputs, line=self._line), self._selection)

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        """The model's outputs, checked to be a finite tensor (images, classes)."""
        return self.run(inputs).detach()

    @full_precision()
    def run(self, inputs: Tensor) -> Tensor:
        """Like `outputs`, where gradients may pass."""
        return self.run_as_set(inputs)

    def run_as_set(self, inputs: Tensor) -> Tensor:
        """Like `run`, in whatever precision PyTorch is set to."""
        return self._asked.outputs(inputs)

    def _outputs_beside(self, inputs: Tensor, held: ExtraInputs) -> Tensor:
        return self.holding(held).outputs(inputs)

    def _form(self, inputs: Tensor) -> Any:
        return tuple(inputs.shape[1:]), inputs.dtype, inputs.device, self._asked.held.form
