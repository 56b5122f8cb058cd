"""Kernels that nearly every network needs, compiled while the network is still being captured.

Small sites are asked for all that sites do, in a rehearsal: what they need is what the sites of
ResNets, VGGs and their like need, in the order in which these come to need it. What else a network
needs is compiled when it is met.
"""

import torch
from torch.nn.functional import max_pool2d_with_indices

from dmbp.engine.base import Loss
from dmbp.engine.gpu.merging import Merged
from dmbp.engine.gpu.state import GradientRange, LearningState, Split, StreamGradient, start
from dmbp.engine.gpu.triton.gates import started
from dmbp.engine.gpu.triton.launch import rehearsing
from dmbp.engine.gpu.triton.pooled_site import PooledTritonSite
from dmbp.engine.gpu.triton.scores import TritonScores
from dmbp.engine.gpu.triton.site import TritonSite
from dmbp.engine.gpu.triton.split_convolution import SUMMANDS, SplitConvolution
from dmbp.engine.gpu.triton.windows import GatheredTranspose, unpooled, winners_of
from dmbp.engine.gpu.triton.winograd import Winograd
from dmbp.engine.plan.kernels import Pooling
from dmbp.engine.plan.streams import channels_last
from dmbp.engine.plan.tail import Tail
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.choices import Gather
from dmbp.linear.steps import Step

CHANNELS = 64
SIZE = (16, 16)

FEW_ROWS = 4
"""Of which convolutions may be split."""

RESNET, VGG = (3, 2, 1), (2, 2, 0)
"""Kernel, stride and padding of their max-poolings."""

_begun: set[tuple[Loss, torch.dtype, torch.device, bool]] = set()


def compile_ahead(loss: Loss, *, dtype: torch.dtype, device: torch.device, rows: int) -> None:
    """Begin to compile, once in a process; launches wait for their own kernels."""
    key = (loss, dtype, device, rows <= FEW_ROWS)
    if key not in _begun:
        _begun.add(key)
        with rehearsing(ahead=True):
            ask(loss, dtype=dtype, device=device, rows=rows)


@torch.no_grad()
def ask(loss: Loss, *, dtype: torch.dtype, device: torch.device, rows: int) -> None:
    """Launch every kernel."""
    gradient = channels_last(torch.zeros(2, CHANNELS, *SIZE, device=device))
    slope = torch.ones(1, CHANNELS, *SIZE, dtype=torch.bool, device=device)
    _ask_for_single_precision(gradient)
    logits, _ = started(gradient, slope, 1.0)
    tail = Tail({0: gradient[:1]}, torch.zeros(1, device=device))
    learning = start(loss, 1.0, dtype=dtype, unit=1.0, tail=tail)
    images = gradient.to(dtype)
    _ask_for_pooled(_merged(slope, _pooling(gradient, *RESNET)), logits, images, learning)
    site = TritonSite(_merged(slope), logits, learning)
    if rows <= FEW_ROWS and learning.is_compact:
        _ask_for_splits(site, images, learning)
    back = images if learning.is_both else images[:1]
    site.forward([images, images])
    for given in (
        StreamGradient([], tail.gradients[0]),
        StreamGradient([back]),
        StreamGradient([back, back]),
    ):
        site.forward([images])
        site.backward(given, goes_on=True)
    TritonScores(tail, torch.zeros(1, device=device), learning).update({0: images})
    seen = GradientRange(learning.scales, loss) if learning.is_scaled else None
    site.past(gradient, slope, seen)
    _ask_for_pooled(_merged(slope, _pooling(gradient, *VGG)), logits, images, learning)


def _ask_for_single_precision(gradient: torch.Tensor) -> None:
    """Convolutions and poolings around the iterations."""
    plain, strided = ([1, 1], [1, 1], [1, 1], 1), ([2, 2], [1, 1], [1, 1], 1)
    weight = gradient.new_zeros(CHANNELS, CHANNELS, 3, 3)
    Winograd(weight, None, 1)(gradient)
    GatheredTranspose(weight, strided, (2 * SIZE[0], 2 * SIZE[1]))(gradient)
    GatheredTranspose(weight[:, :3], plain, SIZE)(gradient)
    pooling = _pooling(gradient, *VGG)
    unpooled(gradient, winners_of(pooling, SIZE[1]), pooling, SIZE)


def _pooling(images: torch.Tensor, kernel: int, stride: int, padding: int) -> Pooling:
    """A max-pooling of images."""
    _, index = max_pool2d_with_indices(images[:1], [kernel] * 2, [stride] * 2, [padding] * 2)
    step = Step("", "", "", "", Gather(index, 2), (), {}, output=0, shape=None, site=None)
    return Pooling(step, kernel, stride, padding)


def _merged(slope: torch.Tensor, pooling: Pooling | None = None) -> Merged:
    """A site with a bias before it."""
    gate = Step(
        "", "", "", "", ElementwiseLine(slope), (), {}, output=0, shape=slope.shape, site=None
    )
    shift = torch.zeros(CHANNELS, device=slope.device)
    return Merged(gate, (0,), shift=shift, pooling=pooling)


def _ask_for_pooled(
    merged: Merged, logits: torch.Tensor, images: torch.Tensor, learning: LearningState
) -> None:
    site = PooledTritonSite(merged, logits, learning)
    found = site.forward([images])
    back = found if learning.is_both else found[: len(found) // 2]
    site.backward(StreamGradient([back]), goes_on=True)


def _ask_for_splits(site: TritonSite, images: torch.Tensor, learning: LearningState) -> None:
    weight = images.new_zeros(CHANNELS, CHANNELS, 3, 3)
    for summands in SUMMANDS:
        found = SplitConvolution(weight, ([1, 1], [1, 1], [1, 1], 1), summands)(images)
        site.forward([found])
        back = found if learning.is_both else Split(found.summands[:, :1].contiguous())
        site.backward(StreamGradient([], split=back), goes_on=True)
