"""Operations that are affine in the activations already: they stand for themselves.

Some are linear in one argument only (a convolution in its input, not in its weight): what else
depends on the input, a weight that a model makes for each image, say, is frozen at x.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dmbp.linear.rules.base import Function, OperationCall, Place, Role, Rule
from dmbp.linear.rules.norms import batch_norm, smaller_batch_norm

aten = torch.ops.aten


@dataclass(frozen=True)
class Affine(Rule):
    """An operation that is its own linear map.

    `linear`: positions that may hold an activation (None: any). `mixes`: whether values come out as
    sums over weights, so that a gate that goes in is none any more. `unless` gives the reason when
    a call is not affine after all. `function` replaces the operation by an equal one that suits the
    linear network better.
    """

    kind = "affine"
    linear: frozenset[Place] | None = None
    mixes: bool = False
    unless: Callable[[OperationCall], str | None] | None = None
    function: Function | None = None

    def refusal(self, call: OperationCall) -> str | None:
        """Why this call is not affine in its activations, or None."""
        if self.linear is not None and not call.active & self.linear:
            return "it is not linear in an argument that depends on the input"
        return self.unless(call) if self.unless is not None else None

    def held(self, call: OperationCall) -> frozenset[Place]:
        """Arguments that it is not linear in."""
        return frozenset() if self.linear is None else call.active - self.linear

    def role(self, call: OperationCall) -> Role:
        """What is moved or averaged keeps its role, what is mixed is plain."""
        return Role.PLAIN if self.mixes else super().role(call)

    def freeze(self, call: OperationCall) -> Function:
        """The operation itself."""
        return self.function or call.function


def _random_in_training(position: int) -> Callable[[OperationCall], str | None]:
    def reason(call: OperationCall) -> str | None:
        return "it is random" if call.argument(position, "train", False) else None

    return reason


def _batch_statistics(call: OperationCall) -> str | None:
    if call.argument(5, "training", False):
        return "it normalises by the statistics of the batch, so images depend on each other"
    return None


def _becomes_integer(call: OperationCall) -> str | None:
    for value in (*call.arguments[1:], *call.keywords.values()):
        if isinstance(value, torch.dtype) and not value.is_floating_point:
            return f"it rounds activations to {value}"
    return None


def _overwritten(old: Tensor, new: Tensor, *_: object) -> Tensor:
    """`aten.copy`, which autograd does not know."""
    return new.to(old.dtype).expand(old.shape)


def _passed_on(activation: Tensor) -> Tensor:
    return activation


ANY = Affine()
FIRST = Affine(linear=frozenset({0}))
WEIGHTED = replace(FIRST, mixes=True)


def _rows(rule: Affine, names: str) -> dict[str, Affine]:
    return {f"aten.{name}": rule for name in names.split()}


AFFINE: Mapping[str, Affine] = {
    "getitem": FIRST,
    **_rows(
        WEIGHTED,
        """
        conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding
        conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input convolution.default
        linear.default
        """,
    ),
    **_rows(
        FIRST,
        """
        grid_sampler.default grid_sampler_2d.default
        avg_pool1d.default avg_pool2d.default avg_pool3d.default
        adaptive_avg_pool1d.default adaptive_avg_pool2d.default adaptive_avg_pool3d.default
        _adaptive_avg_pool2d.default _adaptive_avg_pool3d.default
        mean.dim sum.dim_IntList cumsum.default neg.default positive.default alias.default
        pad.default constant_pad_nd.default
        reflection_pad1d.default reflection_pad2d.default reflection_pad3d.default
        replication_pad1d.default replication_pad2d.default replication_pad3d.default
        upsample_nearest1d.default upsample_nearest1d.vec
        upsample_nearest2d.default upsample_nearest2d.vec
        upsample_nearest3d.default upsample_nearest3d.vec
        _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec
        _upsample_nearest_exact2d.default
        upsample_linear1d.default upsample_linear1d.vec
        upsample_bilinear2d.default upsample_bilinear2d.vec _upsample_bilinear2d_aa.vec
        upsample_bicubic2d.default upsample_bicubic2d.vec _upsample_bicubic2d_aa.vec
        upsample_trilinear3d.default upsample_trilinear3d.vec
        reshape.default flatten.using_ints unflatten.int permute.default transpose.int t.default
        numpy_T.default movedim.int movedim.intlist squeeze.default squeeze.dim squeeze.dims
        unsqueeze.default expand.default repeat.default tile.default
        slice.Tensor select.int narrow.default index.Tensor index_select.default
        split.Tensor split.sizes split_with_sizes.default chunk.default unbind.int
        roll.default flip.default pixel_shuffle.default pixel_unshuffle.default
        channel_shuffle.default diagonal.default im2col.default col2im.default unfold.default
        gather.default take_along_dim.default
        clone.default contiguous.default lift_fresh_copy.default
        masked_fill.Scalar
        """,
    ),
    **_rows(ANY, "add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar rsub.Tensor"),
    **_rows(ANY, "cat.default stack.default hstack.default vstack.default where.self"),
    **_rows(ANY, "scatter.src scatter.value scatter_add.default index_add.default"),
    # What writing through a view becomes.
    **_rows(ANY, "slice_scatter.default select_scatter.default index_put.default"),
    **_rows(Affine(function=_overwritten), "copy.default"),
    # A model may keep gradients out of a path in training; its value passes there all the same.
    **_rows(Affine(function=_passed_on), "detach.default"),
    **_rows(replace(WEIGHTED, unless=_batch_statistics, function=batch_norm), "batch_norm.default"),
    **_rows(replace(WEIGHTED, unless=_batch_statistics), "_native_batch_norm_legit.default"),
    **_rows(
        replace(WEIGHTED, function=smaller_batch_norm),
        "_native_batch_norm_legit_no_training.default",
    ),
    **_rows(
        replace(FIRST, unless=_random_in_training(2)),
        "dropout.default feature_dropout.default alpha_dropout.default "
        "feature_alpha_dropout.default native_dropout.default",
    ),
    **_rows(
        replace(FIRST, unless=_becomes_integer),
        "_to_copy.default to.dtype to.dtype_layout to.device type_as.default",
    ),
    # The linear network may lay activations out in memory otherwise than the model does, and a view
    # would then fail where a reshape copies.
    **_rows(
        replace(FIRST, function=aten.reshape.default),
        "view.default _unsafe_view.default",
    ),
}
