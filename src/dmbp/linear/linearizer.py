"""Turns a model and inputs into a checked `LinearNetwork`.

    model + inputs ──ModelRunner──▶ outputs ──capture──▶ graph ──freeze at x──▶ LinearNetwork

    >>> [site.name for site in linearize(model, images, target=3).sites]
    ['1']

Exporting a model takes seconds, so a `Linearizer` keeps the graphs it has captured. Every frozen
network is compared with the model's own outputs before it is returned.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dmbp.errors import InexactCapture
from dmbp.linear.attention import AttentionPass, run_attention
from dmbp.linear.capture import cache
from dmbp.linear.capture.composite import with_composite_activations
from dmbp.linear.capture.export import CapturedGraph, capture
from dmbp.linear.freeze.freeze import check_exactness, freeze
from dmbp.linear.freeze.secants import with_secants
from dmbp.linear.lines import Pieces, Smoothing, line_name, parse_line, tangent
from dmbp.linear.model.checks import check_batch, check_independence
from dmbp.linear.model.runner import ModelRunner
from dmbp.linear.model.signature import ExtraInputs, Output
from dmbp.linear.model.wrappers import Model, evaluating
from dmbp.linear.network import LinearNetwork, run
from dmbp.linear.positions import Positions, find_positions
from dmbp.linear.rules.base import Rule
from dmbp.linear.steps import FrozenGraph, Selection, parse_selection, select_sites
from dmbp.linear.targets import Target, TargetRows
from dmbp.precision import TOLERANCE, full_precision, relative_error


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
    """Freeze a model at a batch of inputs.

    Args:
        model: A module or an exported program.
        inputs: A batch of inputs, such as images (batch, channel, height, width).
        target: The score of each row: a class, several classes, weighted classes or a function of
            the outputs. None takes each image's highest output.
        smooth: How smooth activations are frozen: by their "tangent", by a "secant" through zero,
            or approximated by `Pieces(k)`, which may be written "pieces:k".
        sites: Patterns for the names of the activations that carry masks, such as "layer4*"; None
            takes all of them.
        output: Which of the model's outputs is explained: a name, a position or a function of what
            the model returns. None takes the only tensor of shape (batch, classes), or `logits`.
        additional_forward_args: The model's other inputs, which stay constant.

    Returns:
        The network, whose value at `inputs` is the model's score.

    Raises:
        CaptureError: If the model cannot be reproduced exactly.
        InputError: If the inputs or arguments do not fit the model.
    """
    linearizer = Linearizer(model, smooth=smooth, sites=sites, output=output)
    return linearizer.linearize(
        inputs, target=target, additional_forward_args=additional_forward_args
    )


class Linearizer:
    """Freezes one model at any number of inputs, and captures its graph only once.

    `runner` runs the model itself, and `overrides` are rules that replace those of the freezing
    table, by operation. The other arguments are those of `linearize`.
    """

    def __init__(
        self,
        model: Model,
        *,
        smooth: Smoothing = "tangent",
        sites: Selection = None,
        output: Output = None,
        overrides: Mapping[str, Rule] | None = None,
    ) -> None:
        self._overrides = overrides
        self.runner = ModelRunner(model, output=output)
        self._line = parse_line(smooth)
        self._selection: Selection = None if sites is None else parse_selection(sites)
        self._captured: dict[Any, CapturedGraph] = {}
        self._mask_elements: dict[Any, int] = {}
        self._positions: dict[Any, tuple[CapturedGraph, Mapping[str, Positions]]] = {}

    @property
    def model(self) -> Model:
        """The model without its wrappers."""
        return self.runner.model

    @property
    def is_approximate(self) -> bool:
        """Whether smooth activations are replaced by pieces, which only approximate the model."""
        return isinstance(self._line, Pieces)

    def described(self) -> dict[str, str]:
        """Return how the model is frozen as plain values, for a file or a report."""
        sites = "all" if self._selection is None else ", ".join(self._selection)
        return {"smooth": line_name(self._line), "sites": sites}

    def with_extra_inputs(self, extra_inputs: ExtraInputs) -> Linearizer:
        """Return a linearizer with other extra inputs, which shares this one's captured graphs."""
        other = copy.copy(self)
        other.runner = self.runner.with_extra_inputs(extra_inputs)
        return other

    def share_captures(self, other: Linearizer) -> None:
        """Use the captured graphs of another linearizer with the same model and output."""
        self._captured = other._captured

    @torch.inference_mode(False)
    def linearize(
        self, inputs: Tensor, *, target: Target = None, additional_forward_args: Any = None
    ) -> LinearNetwork:
        """Freeze the model at `inputs`; the arguments are those of `dmbp.linearize`."""
        check_batch(inputs)
        extra = self.runner.parse_extra_inputs(additional_forward_args, inputs)
        runner = self.runner.with_extra_inputs(extra)
        inputs, outputs, rows = runner.target_rows(inputs, target)
        images = torch.tensor(rows.image, device=inputs.device)
        with_extra = self.with_extra_inputs(extra.pick(rows.image))
        return with_extra.freeze(inputs[images], outputs[images], rows)

    @full_precision()
    @torch.inference_mode(False)
    def freeze(self, inputs: Tensor, outputs: Tensor, rows: TargetRows) -> LinearNetwork:
        """Freeze the model at each row's image, given the model's outputs there."""
        with evaluating(self.model):
            frozen, exactness = self._freeze(inputs, outputs)
        approximation_error = relative_error(frozen.output, outputs) if self.is_approximate else 0.0
        return LinearNetwork(
            frozen, inputs, rows, exactness=exactness, approximation_error=approximation_error
        )

    @full_precision()
    @torch.inference_mode(False)
    def freeze_between(
        self, inputs: Tensor, outputs: Tensor, baselines: Tensor, rows: TargetRows
    ) -> LinearNetwork:
        """Return the network that is exact both at each row's image and at its baseline.

        Raises:
            InexactCapture: If activations are multiplied or compared, so no such network exists.
        """
        with evaluating(self.model):
            at_input, exactness = self._freeze(inputs, outputs)
            baseline_outputs = self.runner.outputs(baselines)
            at_baseline, _ = self._freeze(baselines, baseline_outputs)
            frozen = with_secants(at_input, at_baseline, inputs, baselines)
            with torch.no_grad():
                at_both = run(frozen, [inputs, baselines], None)
        for output, expected in zip(at_both, (outputs, baseline_outputs), strict=True):
            error = relative_error(output, expected)
            if error > TOLERANCE[inputs.dtype]:
                raise InexactCapture(
                    f"between input and baseline the network differs from the model by {error:.1e} "
                    "relative: forward() multiplies or compares activations, as attention, layer "
                    "norm, squeeze-and-excitation or x * (x > 0) do, where no slope between two "
                    "inputs exists; use integrated_gradients, and if forward() writes out a ReLU, "
                    "use torch.relu"
                )
        return LinearNetwork(frozen, inputs, rows, exactness=exactness)

    @torch.no_grad()
    def freeze_unchecked(self, captured: CapturedGraph, inputs: Tensor) -> FrozenGraph:
        """Freeze a captured graph at other inputs without comparing it with the model."""
        return select_sites(self._frozen(captured, inputs), self._selection)

    @full_precision()
    @torch.inference_mode(False)
    def count_mask_elements(self, image: Tensor) -> int:
        """Return how many elements carry a mask for an image of this shape and dtype."""
        key = (tuple(image.shape[1:]), image.dtype)
        if key not in self._mask_elements:
            with evaluating(self.model):
                frozen, _ = self._freeze(image, self.runner.outputs(image))
            shapes = [step.site.shape for step in frozen.steps if step.site is not None]
            self._mask_elements[key] = sum(math.prod(shape) for shape in shapes)
        return self._mask_elements[key]

    def captured_graph(self, inputs: Tensor) -> CapturedGraph | None:
        """Return the graph captured for inputs of this form, or None if there is none yet."""
        captured = self._captured.get(self.runner.signature(inputs))
        return captured if captured is None or captured.batch in (None, len(inputs)) else None

    @torch.inference_mode(False)
    def positions(self, inputs: Tensor) -> Mapping[str, Positions]:
        """Return where on the image the activations lie that have a place there, by step.

        The model has to have been frozen at inputs of this form.
        """
        captured = self.captured_graph(inputs)
        assert captured is not None, "the model has not been frozen"
        key = self.runner.signature(inputs)
        known = self._positions.get(key)
        if known is None or known[0] is not captured:
            example = inputs[:1] if captured.batch is None else inputs
            bound = self._with_extra_tensors(captured, len(example))
            known = self._positions[key] = captured, find_positions(bound, example)
        return known[1]

    def attention(self, inputs: Tensor) -> AttentionPass:
        """Run the captured graph itself, and keep what its attention layers compute.

        The model has to have been frozen at inputs of this form.
        """
        captured = self.captured_graph(inputs)
        assert captured is not None, "the model has not been frozen"
        with evaluating(self.model), full_precision():
            return run_attention(self._with_extra_tensors(captured, len(inputs)), inputs)

    def _with_extra_tensors(self, captured: CapturedGraph, images: int) -> CapturedGraph:
        """Return a graph with the extra inputs of so many images as constants."""
        extra = self.runner.extra_inputs
        arguments = extra.arguments(images)
        return captured.with_extra_inputs([arguments[k] for k in extra.tensor_positions])

    def _freeze(self, inputs: Tensor, outputs: Tensor) -> tuple[FrozenGraph, float]:
        """Return the graph frozen at the inputs and its relative error; capture it if needed."""
        captured = self.captured_graph(inputs)
        if captured is not None:
            try:
                return self._freeze_and_check(captured, inputs, outputs)
            except InexactCapture:
                # The model has changed since it was captured; it may have a new head.
                del self._captured[self.runner.signature(inputs)]
                self.runner.forget()
        extra = self.runner.extra_inputs
        exportable = self.runner.exportable(inputs)
        recalled = self._recalled(exportable, inputs, outputs)
        if recalled is not None:
            captured, frozen, exactness = recalled
        else:
            exported = capture(exportable, inputs, extra_inputs=extra)
            captured = with_composite_activations(exported)
            frozen, exactness = self._freeze_and_check(captured, inputs, outputs)
            if not self.runner.has_extra_inputs:
                cache.keep(exported, exportable, inputs)
        check_independence(self.runner.outputs_with, inputs, extra, outputs)
        self._captured[self.runner.signature(inputs)] = captured
        return frozen, exactness

    def _recalled(
        self, exportable: Model, inputs: Tensor, outputs: Tensor
    ) -> tuple[CapturedGraph, FrozenGraph, float] | None:
        """Return a graph from the cache with what `_freeze` returns, or None.

        The graph has to agree with the model at the inputs, as any graph, and at another input.
        """
        exported = None
        if not self.runner.has_extra_inputs:
            exported = cache.recall(exportable, inputs)
        if exported is None:
            return None
        try:
            captured = with_composite_activations(exported)
            frozen, exactness = self._checked(captured, inputs, outputs)
            other = -inputs[:1].flip(-1)
            self._checked(captured, other, self.runner.outputs(other))
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a graph that is not this model's may fail in any way
            cache.forget(exportable, inputs, "it does not agree with the model")
            return None
        return captured, select_sites(frozen, self._selection), exactness

    def _freeze_and_check(
        self, captured: CapturedGraph, inputs: Tensor, outputs: Tensor
    ) -> tuple[FrozenGraph, float]:
        """Return the graph frozen at the inputs with the selected sites, and its relative error."""
        frozen, exactness = self._checked(captured, inputs, outputs)
        return select_sites(frozen, self._selection), exactness

    def _checked(
        self, captured: CapturedGraph, inputs: Tensor, outputs: Tensor
    ) -> tuple[FrozenGraph, float]:
        """Return the graph frozen at the inputs, and the relative error of its output.

        Pieces approximate the model, so the network with tangents is compared with it instead.
        """
        line = tangent if self.is_approximate else self._line
        captured = self._with_extra_tensors(captured, len(inputs))
        frozen = freeze(captured, inputs, line=line, overrides=self._overrides)
        exactness = check_exactness(
            captured, frozen, inputs, outputs, line=line, overrides=self._overrides
        )
        if self.is_approximate:
            frozen = self._frozen(captured, inputs)
        return frozen, exactness

    def _frozen(self, captured: CapturedGraph, inputs: Tensor) -> FrozenGraph:
        return freeze(captured, inputs, line=self._line, overrides=self._overrides)

    def __copy__(self) -> Linearizer:
        """Return a copy that shares the captured graphs."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Leave graphs out of deep copies and pickles; they are captured again when needed."""
        return {**self.__dict__, "_captured": {}, "_positions": {}}
