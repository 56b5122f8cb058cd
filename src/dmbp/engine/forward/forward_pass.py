"""A model's forward pass on many images, faster than the model itself.

    >>> linearizer = dmbp.linear.Linearizer(model)
    >>> outputs = linearizer.linearize(images, target=3).frozen.output
    >>> forward = ForwardPasses().find(linearizer.captured_graph(images), images, outputs)
    >>> (forward(images) - model(images)).abs().max().item() < 1e-4
    True

Batch norms are folded, and convolutions are fused with the sums and activations after them
(`graph.py`). On a GPU, max-pooling runs in a kernel of ours, in a fifth of PyTorch's time. On a CPU
a float32 model is computed in float32, or in bfloat16 on request. On a GPU it is computed in
float16, which rounds to 11 bits, where that gives no finite output (float16 ends at 65 504) in
bfloat16, which rounds to 8, and where that is too far from the model in float32. Weights are
copies, so a forward pass is compared with the model's own outputs before every use, and built again
if the model's parameters have changed. What is used for some images depends on these images, not on
what was run before.

On two cores with bfloat16 instructions, an image takes 40 ms against 56 ms for ResNet50, and 4.5 ms
against 7.0 ms for the built-in model; in bfloat16 20 ms and 2.4 ms, with relative errors below 1 %.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph

from dmbp.engine.forward.convolution import fuse_cudnn, fuse_onednn, has_onednn
from dmbp.engine.forward.graph import ForwardGraph
from dmbp.engine.forward.recording import Recorder
from dmbp.engine.gradients import vector_products
from dmbp.engine.plan.kernels import MAX_POOL
from dmbp.engine.select import max_pool2d
from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.rules.base import Function
from dmbp.precision import TOLERANCE, full_precision, relative_error

BATCH_SIZE = {"cpu": 8, "cuda": 256}
"""How many images are run at once, by the type of their device. On two cores, chunks of 16 and 32
take 7 % longer than chunks of 8 (ResNet50 and the built-in model)."""

DTYPES: Mapping[str, Sequence[torch.dtype]] = {
    "cpu": (torch.float32,),
    "cuda": (torch.float16, torch.bfloat16, torch.float32),
}
"""What float32 models are computed in, by the type of their device; each dtype is used where the
one before gives outputs that are not finite, or too far from the model's."""


GRADIENT_DTYPES: Mapping[str, Sequence[torch.dtype]] = {
    "cpu": (torch.float32,),
    "cuda": (torch.bfloat16, torch.float32),
}
"""The same for passes that are differentiated; gradients are often too small for float16."""


MAX_KEPT = 4
"""How many forward passes `ForwardPasses` keeps, because each has its own copy of the weights."""


Fingerprint = tuple[Any, ...]
"""What `fingerprint` returns."""


class ForwardPass:
    """The forward pass of a captured model, for inputs of the form that it was captured for.

    Args:
        captured: The captured graph, which serves any batch size and has no extra inputs.
        device: The device of the inputs.
        dtypes: What to compute in. The next dtype is used for images whose outputs are not finite,
            because they exceed the range of the one before.
        is_fused: Whether convolutions are fused with what follows them.
        is_recorded: Whether small batches on a GPU are recorded as CUDA graphs.
        is_differentiable: Whether `gradients` is needed; such a pass must not be fused.
    """

    def __init__(
        self,
        captured: CapturedGraph,
        device: torch.device,
        *,
        dtypes: Sequence[torch.dtype],
        is_fused: bool = True,
        is_recorded: bool = True,
        is_differentiable: bool = False,
    ) -> None:
        self._captured = captured
        self._device = device
        self.dtype, *later_dtypes = dtypes
        make_wider = partial(
            ForwardPass,
            captured,
            device,
            dtypes=later_dtypes,
            is_fused=is_fused,
            is_recorded=is_recorded,
            is_differentiable=is_differentiable,
        )
        self._make_wider = cache(make_wider) if later_dtypes else None
        self._is_fused = is_fused and not is_differentiable
        self._is_recorded = is_recorded and device.type == "cuda"
        self._build()

    @torch.no_grad()
    def _build(self) -> None:
        self._built_from = fingerprint(self._captured.constants.values())
        forward_graph = ForwardGraph(self._captured)
        forward_graph.fold_batch_norms()
        if self.dtype != torch.float32:
            forward_graph.cast(self.dtype)
        self.fused_convolutions = 0
        if self._is_fused:
            forward_graph.join_biases()
            kind = self._device.type
            fuse = fuse_cudnn if kind == "cuda" else fuse_onednn
            self.fused_convolutions = forward_graph.fuse_convolutions(fuse, batch=BATCH_SIZE[kind])
            forward_graph.replace(MAX_POOL, max_pool2d)
        run = _in_dtype(forward_graph.compiled(), self.dtype)
        gradients = partial(input_gradients, run)
        self._plain_run, self._plain_gradients = run, gradients
        self._run = Recorder(run) if self._is_recorded else run
        self._gradients = Recorder(gradients) if self._is_recorded else gradients

    @property
    def tolerance(self) -> float:
        """The largest relative error of an output that counts as rounding."""
        # float16 is held to bfloat16's, so that replacing it does not change what is accepted.
        return TOLERANCE[torch.float32 if self.dtype == torch.float32 else torch.bfloat16]

    @full_precision()
    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, images: Tensor, *, batch_size: int | None = None) -> Tensor:
        """Return the model's outputs for any number of images.

        Args:
            images: The images, (images, …).
            batch_size: How many images may be run at once; None takes `BATCH_SIZE`.

        Returns:
            The outputs in float32, (images, classes). They are not finite where the model's are
            not.
        """
        batch_size = batch_size or BATCH_SIZE[self._device.type]
        outputs = _in_chunks(self._run, images, batch_size)
        if self._make_wider is not None:
            overflowing = ~torch.isfinite(outputs).flatten(1).all(1)
            if bool(overflowing.any()):
                wider = self._make_wider()
                outputs[overflowing] = wider(images[overflowing], batch_size=batch_size)
        return outputs

    @full_precision()
    @torch.inference_mode(False)
    def gradients(self, images: Tensor, weights: Tensor) -> Tensor | None:
        """Return the gradient of a weighted sum of the outputs, as `input_gradients` does.

        Only a pass that is built for it can be differentiated. The images must fit into memory.
        """
        return self._gradients(images, weights)

    @full_precision()
    @torch.inference_mode(False)
    @torch.no_grad()
    def run_unchecked(self, images: Tensor) -> Tensor:
        """Return the outputs without a look at them, so that this can be part of a recording.

        Whoever replays it has to see whether they are finite.
        """
        return _in_chunks(self._plain_run, images, BATCH_SIZE[self._device.type])

    @full_precision()
    @torch.inference_mode(False)
    def gradients_unchecked(self, images: Tensor, weights: Tensor) -> Tensor | None:
        """Return what `gradients` does, in a way that can be part of a recording."""
        return self._plain_gradients(images, weights)

    def is_current(self, state: Fingerprint | None = None) -> bool:
        """Return whether the model's tensors are those that this was built from.

        `state` is their `fingerprint`, if it is known.
        """
        return self._built_from == (state or fingerprint(self._captured.constants.values()))

    @full_precision()
    @torch.inference_mode(False)
    @torch.no_grad()
    def faithful_at(self, images: Tensor, outputs: Tensor) -> "ForwardPass | None":
        """Return what agrees with the model, whose `outputs` at the images are given.

        Returns:
            This pass, or the one in the next dtype if this one overflows at any of these images,
            so that images like them are not run twice, or disagrees with the model; None if the
            last one disagrees as well.
        """
        found = _in_chunks(self._run, images, BATCH_SIZE[self._device.type])
        if relative_error(found, outputs) <= self.tolerance:
            return self
        return None if self._make_wider is None else self._make_wider().faithful_at(images, outputs)


def _in_chunks(run: Function, images: Tensor, batch_size: int) -> Tensor:
    """Run images in chunks of one size, so that kernels are selected for one size only.

    The last chunk begins earlier than the one before it ends, if it has to.
    """
    count = len(images)
    chunks = max(1, math.ceil(count / batch_size))
    if chunks == 1:
        return run(images)
    size = math.ceil(count / chunks)
    last = count - size
    parts = [run(images[k : k + size]) for k in range(0, last, size)]
    done = size * len(parts)
    return torch.cat([*parts, run(images[last:])[done - last :]])


def input_gradients(run: Function, images: Tensor, weights: Tensor) -> Tensor | None:
    """Return the gradient of a weighted sum of outputs with respect to the images.

    Args:
        run: Runs a model on images so that autograd can differentiate its outputs.
        images: The images, (images, …).
        weights: The weight of each output, (images, classes).

    Returns:
        The gradient, shaped like the images, or None if the model passes no gradient to them, or
        overwrites activations that autograd needs.
    """
    with torch.enable_grad():
        images = images.detach().requires_grad_()
        outputs = run(images)
    if not outputs.requires_grad:
        return None
    try:
        (found,) = vector_products([outputs], [images], [weights.to(outputs)])
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None
    return found


def _in_dtype(run: Function, dtype: torch.dtype) -> Function:
    """Return a function of float32 images with float32 outputs, which computes in `dtype`."""

    def converted(images: Tensor) -> Tensor:
        order = torch.channels_last if images.dim() == 4 else torch.preserve_format
        return run(images.to(dtype, memory_format=order)).float()

    return converted


STRETCHES = 64
"""How many sums a fingerprint takes of the tensors of a kind."""


class PendingFingerprint:
    """A fingerprint whose sums a GPU may still be computing."""

    @torch.no_grad()
    def __init__(self, tensors: Iterable[Tensor]) -> None:
        places: list[Any] = []
        by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for tensor in tensors:
            written = -1 if tensor.is_inference() else tensor._version
            places.append((tensor.data_ptr(), tensor.shape, written))
            values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            by_kind.setdefault((values.device, values.dtype), []).append(values.detach().flatten())
        self._places = tuple(places)
        self._sums: list[Tensor] = []
        for (device, _), parts in by_kind.items():
            parts = parts if device.type == "cpu" else [torch.cat(parts)]  # few kernels on a GPU
            found = torch.cat([_sums(part) for part in parts])
            # As bits, because NaN differs from itself.
            self._sums.append(found.view(torch.int32) if found.is_floating_point() else found)

    def read(self) -> Fingerprint:
        """Return the fingerprint; this waits for the GPU."""
        return self._places, tuple(tuple(part.tolist()) for part in self._sums)


def fingerprint(tensors: Iterable[Tensor]) -> Fingerprint:
    """Return where tensors are, how often they were written to, and sums of their numbers.

    PyTorch counts changes in place, but not those by fused optimizers or through `.data`, which
    show in the sums. A change of a single number shows if it is more than about 1e-7 of the sum of
    its stretch.
    """
    return PendingFingerprint(tensors).read()


def _sums(values: Tensor) -> Tensor:
    """Return the sums of 64 stretches of equal length, and the sum of what is left."""
    kind = torch.float32 if values.is_floating_point() else torch.int64
    length = len(values) // STRETCHES
    stretches = values[: STRETCHES * length].view(STRETCHES, length)
    rest = values[STRETCHES * length :]
    return torch.cat([stretches.sum(1, dtype=kind), rest.sum(dtype=kind)[None]])


def fast_forward(
    captured: CapturedGraph,
    example: Tensor,
    *,
    dtypes: Sequence[torch.dtype] | None = None,
    is_differentiable: bool = False,
) -> ForwardPass | None:
    """Return a fast forward pass of a captured model, or None if it would not be faster.

    Only float32 models on a CPU with oneDNN or on an NVIDIA GPU are made faster; in float32, only
    those with convolutions. The graph must serve any batch size and have no extra inputs.

    Args:
        captured: The model's captured graph.
        example: Inputs like those that will be run, one or more; the forward pass is tried on them.
        dtypes: What to compute in, one after another as they overflow; None takes `DTYPES`. On a
            CPU, bfloat16 needs a CPU with instructions for it.
        is_differentiable: Whether `ForwardPass.gradients` is needed, so that nothing is fused.

    Returns:
        The forward pass, not yet compared with the model (`ForwardPass.faithful_at`).
    """
    device = example.device
    if captured.batch is not None or captured.extra_inputs or example.dtype != torch.float32:
        return None
    if dtypes is None:
        dtypes = (GRADIENT_DTYPES if is_differentiable else DTYPES).get(device.type, ())
    if not example.is_cuda:
        dtypes = [dtype for dtype in dtypes if has_onednn(device, dtype)]
    for first in range(len(dtypes)):
        try:
            forward = ForwardPass(
                captured, device, dtypes=dtypes[first:], is_differentiable=is_differentiable
            )
            forward(example[:1])
        except torch.OutOfMemoryError:
            raise
        except Exception:  # an operation without a kernel for this dtype or memory order
            continue
        is_faster = forward.dtype != torch.float32 or forward.fused_convolutions > 0
        return forward if is_faster or is_differentiable else None
    return None


class ForwardPasses:
    """Keeps the forward passes of a few captured graphs, and checks them before every use.

    Args:
        dtypes: What to compute in; see `fast_forward`.
        is_differentiable: Whether they can be differentiated; see `fast_forward`.
    """

    def __init__(
        self, dtypes: Sequence[torch.dtype] | None = None, *, is_differentiable: bool = False
    ) -> None:
        self._dtypes = dtypes
        self._is_differentiable = is_differentiable
        self._kept: dict[Graph, ForwardPass | None] = {}

    def find(
        self,
        captured: CapturedGraph,
        images: Tensor,
        outputs: Tensor,
        *,
        state: Fingerprint | None = None,
    ) -> ForwardPass | None:
        """Return a forward pass that agrees with the model at these images, or None.

        The answer depends on these images alone: a pass that disagrees here is kept for others. It
        is built again if the model's parameters have changed.

        Args:
            captured: The model's captured graph.
            images: Inputs of the form that it was captured for.
            outputs: The model's outputs at these inputs.
            state: The `fingerprint` of the graph's tensors, if it is known.
        """
        graph = captured.graph
        kept = self._kept.get(graph)
        if graph not in self._kept or (kept is not None and not kept.is_current(state)):
            self._kept.pop(graph, None)
            kept = self._kept[graph] = fast_forward(
                captured, images, dtypes=self._dtypes, is_differentiable=self._is_differentiable
            )
            while len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return None if kept is None else kept.faithful_at(images, outputs)

    def __reduce__(self) -> Any:
        """Leave forward passes out of copies and pickles; they are built again when needed."""
        make = partial(ForwardPasses, is_differentiable=self._is_differentiable)
        return make, (self._dtypes,)


def run_padded(size: int, run: Function, images: Tensor) -> Tensor:
    """Run a model that takes batches of one size; the last one repeats its last image."""
    outputs: list[Tensor] = []
    for part in images.split(size):
        filled = torch.cat([part, part[-1:].expand(size - len(part), *part.shape[1:])])
        outputs.append(run(filled)[: len(part)])
    return torch.cat(outputs)
