"""Compiles the kernels that nearly every network needs, while the network is still being captured.

Inside `compile_only`, everything that the engine launches is launched for small sites. This covers
the kernels of ResNets, VGGs and similar networks, in the order in which they are needed. Any other
kernel is compiled when it is first needed.
"""

import torch
from torch.nn.functional import max_pool2d_with_indices

from dmbp.engine.base import Loss
from dmbp.engine.gpu.fusion import FusedGate
from dmbp.engine.gpu.half_precision import GradientRange
from dmbp.engine.gpu.learning_state import LearningState, SplitSum, StreamGradient, initial_state
from dmbp.engine.gpu.triton.gate_gradients import start_at_gate
from dmbp.engine.gpu.triton.images import max_pool2d, replace_pixels
from dmbp.engine.gpu.triton.launch import compile_only, multiprocessors
from dmbp.engine.gpu.triton.loss_head import TritonLossHead
from dmbp.engine.gpu.triton.pooled_site import PooledTritonSite
from dmbp.engine.gpu.triton.product import MAX_PARTS, TILES, multiply
from dmbp.engine.gpu.triton.site import TritonSite
from dmbp.engine.gpu.triton.split_convolution import SUMMANDS, SplitConvolution
from dmbp.engine.gpu.triton.transposes import GatheredTranspose, unpool, window_winners
from dmbp.engine.gpu.triton.winograd import WinogradConvolution
from dmbp.engine.plan.kernels import Pooling
from dmbp.engine.plan.streams import channels_last
from dmbp.engine.plan.tail import Tail
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.choices import Gather
from dmbp.linear.steps import LinearStep

CHANNELS = 64
SIZE = (16, 16)
"""The channels, height and width of the images that stand in for a network's."""

MAX_ROWS_TO_SPLIT = 4
"""The largest batch for which kernels of split convolutions are compiled ahead of time."""

RESNET, VGG = (3, 2, 1), (2, 2, 0)
"""The kernel size, stride and padding of the max-poolings in ResNets and VGGs."""

_started: set[tuple[Loss, torch.dtype, torch.device, bool]] = set()
"""The settings for which compilation was started in this process."""


def compile_ahead(loss: Loss, *, dtype: torch.dtype, device: torch.device, rows: int) -> None:
    """Start compiling in the background, once per process and setting.

    Launches wait for their own kernels.
    """
    key = (loss, dtype, device, rows <= MAX_ROWS_TO_SPLIT)
    if key not in _started:
        _started.add(key)
        with compile_only(background=True):
            launch_common_kernels(loss, dtype=dtype, device=device, rows=rows)


@torch.no_grad()
def launch_common_kernels(
    loss: Loss, *, dtype: torch.dtype, device: torch.device, rows: int
) -> None:
    """Launch every kernel that common networks need; call it inside `compile_only`."""
    gradient = channels_last(torch.zeros(2, CHANNELS, *SIZE, device=device))
    slope = torch.ones(1, CHANNELS, *SIZE, dtype=torch.bool, device=device)
    _launch_single_precision(gradient)
    logits, _ = start_at_gate(gradient, slope, 1.0)
    tail = Tail({0: gradient[:1]}, torch.zeros(1, device=device))
    learning = initial_state(loss, 1.0, dtype=dtype, unit=1.0, tail=tail)
    images = gradient.to(dtype)
    _launch_pooled_site(_fused_gate(slope, _pooling(gradient, *RESNET)), logits, images, learning)
    site = TritonSite(_fused_gate(slope), logits, learning)
    if rows <= MAX_ROWS_TO_SPLIT and learning.is_compact:
        _launch_split_convolutions(site, images, learning)
    back = images if learning.touches_both_streams else images[:1]
    site.forward([images, images])
    for incoming in (
        StreamGradient([], tail.gradients[0]),
        StreamGradient([back]),
        StreamGradient([back, back]),
    ):
        site.forward([images])
        site.backward(incoming, needs_input_gradient=True)
    TritonLossHead(tail, torch.zeros(1, device=device), learning).update({0: images})
    gradient_range = GradientRange(learning.scales, loss) if learning.scales_gradients else None
    site.pass_gradient(gradient, slope, gradient_range)
    _launch_pooled_site(_fused_gate(slope, _pooling(gradient, *VGG)), logits, images, learning)
    _launch_on_images(gradient.half())


def _launch_single_precision(gradient: torch.Tensor) -> None:
    """Launch the float32 convolutions and poolings used before and after the iterations."""
    plain, strided = ([1, 1], [1, 1], [1, 1], 1), ([2, 2], [1, 1], [1, 1], 1)
    _launch_products(gradient)
    weight = gradient.new_zeros(CHANNELS, CHANNELS, 3, 3)
    WinogradConvolution(weight, None, 1)(gradient)
    GatheredTranspose(weight, strided, (2 * SIZE[0], 2 * SIZE[1]))(gradient)
    GatheredTranspose(weight[:, :3], plain, SIZE)(gradient)
    pooling = _pooling(gradient, *VGG)
    unpool(gradient, window_winners(pooling, SIZE[1]), pooling, SIZE)


def _launch_on_images(activations: torch.Tensor) -> None:
    """Launch the kernels of methods that run the model on many changed images."""
    kernel, stride, padding = ([side] * 2 for side in RESNET)
    max_pool2d(activations, kernel, stride, padding, [1, 1], ceil_mode=False)
    images = channels_last(activations[:, :3])
    rows = torch.zeros(1, dtype=torch.int64, device=images.device)
    replace_pixels(images, images, rows, images[:1, 0] > 0)


def _launch_products(like: torch.Tensor) -> None:
    """Launch matrix products in large tiles, in small ones, and in parts that are added up."""
    large = TILES[0] * multiprocessors(like.device)
    for rows, channels, depth in ((large, 128, 64), (64, 64, 64), (64, 64, MAX_PARTS * 64)):
        multiply(like.new_empty(rows, depth), like.new_empty(channels, depth))


def _pooling(images: torch.Tensor, kernel: int, stride: int, padding: int) -> Pooling:
    """Return a max-pooling of the first image."""
    _, index = max_pool2d_with_indices(images[:1], [kernel] * 2, [stride] * 2, [padding] * 2)
    step = LinearStep("", "", "", "", Gather(index, 2), (), {}, output=0, shape=None, site=None)
    return Pooling(step, kernel, stride, padding)


def _fused_gate(slope: torch.Tensor, pooling: Pooling | None = None) -> FusedGate:
    """Return a gate with a bias before it."""
    gate = LinearStep(
        "", "", "", "", ElementwiseLine(slope), (), {}, output=0, shape=slope.shape, site=None
    )
    shift = torch.zeros(CHANNELS, device=slope.device)
    return FusedGate(gate, (0,), shift=shift, pooling=pooling)


def _launch_pooled_site(
    fused: FusedGate, logits: torch.Tensor, images: torch.Tensor, learning: LearningState
) -> None:
    """Launch the forward and the backward kernel of a site with max-pooling."""
    site = PooledTritonSite(fused, logits, learning)
    pooled = site.forward([images])
    back = pooled if learning.touches_both_streams else pooled[: len(pooled) // 2]
    site.backward(StreamGradient([back]), needs_input_gradient=True)


def _launch_split_convolutions(
    site: TritonSite, images: torch.Tensor, learning: LearningState
) -> None:
    """Launch split convolutions, and the site's kernels that add up their parts."""
    weight = images.new_zeros(CHANNELS, CHANNELS, 3, 3)
    for summands in SUMMANDS:
        parts = SplitConvolution(weight, ([1, 1], [1, 1], [1, 1], 1), summands)(images)
        site.forward([parts])
        back = (
            parts if learning.touches_both_streams else SplitSum(parts.summands[:, :1].contiguous())
        )
        site.backward(StreamGradient([], split=back), needs_input_gradient=True)
