"""Operations that are already affine in the activations: each is its own linear function.

Some are linear in one argument only; a convolution is linear in its input, not in its weight. If
another argument depends on the input too, such as a weight that the model computes for each image,
it is frozen at x.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dmbp.linear.rules.base import ArgumentKey, Function, OperationCall, Role, Rule, same_rule
from dmbp.linear.rules.norms import batch_norm, decomposed_batch_norm

aten = torch.ops.aten


@dataclass(frozen=True)
class Affine(Rule):
    """An operation that is its own linear map.

    `linear_in` holds the positions of the arguments in which the operation is linear; None means
    all of them. `is_weighted_sum` says that results are weighted sums, so that the sum over a gate
    is not a gate. `refuse` returns the reason if a particular call is not affine, or None.
    `replacement` is a function with the same values that suits the linear network better.
    """

    kind = "affine"
    linear_in: frozenset[ArgumentKey] | None = None
    is_weighted_sum: bool = False
    refuse: Callable[[OperationCall], str | None] | None = None
    replacement: Function | None = None

    def freeze(self, call: OperationCall) -> Function | None:
        """Return the operation itself, or the function that replaces it."""
        return self.replacement or call.function

    def refusal(self, call: OperationCall) -> str | None:
        """Return why this call is not affine in its activations, or None."""
        if self.linear_in is not None and not call.active & self.linear_in:
            return "it is not linear in an argument that depends on the input"
        return self.refuse(call) if self.refuse is not None else None

    def frozen_arguments(self, call: OperationCall) -> frozenset[ArgumentKey]:
        """Return the active arguments in which the operation is not linear."""
        return frozenset() if self.linear_in is None else call.active - self.linear_in

    def role(self, call: OperationCall) -> Role:
        """Return the lowest role of the arguments; a weighted sum is plain."""
        return Role.PLAIN if self.is_weighted_sum else super().role(call)


@dataclass(frozen=True)
class TypeAs(Affine):
    """A cast to the type of another tensor, of which nothing else matters.

    A constant that is cast to the type of an activation remains a constant.
    """

    def freeze(self, call: OperationCall) -> Function | None:
        """Return the cast, or None for a constant."""
        return super().freeze(call) if 0 in call.active else None

    def refusal(self, call: OperationCall) -> str | None:
        """Return why activations cannot be cast, or None."""
        return super().refusal(call) if 0 in call.active else None


def _refuse_random(call: OperationCall) -> str | None:
    return "it is random" if call.argument(2, "train", False) else None


def _refuse_batch_statistics(call: OperationCall) -> str | None:
    if call.argument(5, "training", False):
        return "it normalises by the statistics of the batch, so images depend on each other"
    return None


def _refuse_integer_cast(call: OperationCall) -> str | None:
    for value in (*call.arguments[1:], *call.keywords.values()):
        if isinstance(value, torch.dtype) and not value.is_floating_point:
            if value.is_complex:
                return f"it turns activations into complex numbers ({value})"
            return f"it rounds activations to {value}"
    return None


def _copy(old: Tensor, new: Tensor, *_: object) -> Tensor:
    """Do what `aten.copy` does, which autograd does not differentiate."""
    return new.to(old.dtype).expand(old.shape)


def _identity(activation: Tensor) -> Tensor:
    return activation


ANY_ARGUMENT = Affine()
FIRST_ARGUMENT = Affine(linear_in=frozenset({0}))
WEIGHTED_SUM = replace(FIRST_ARGUMENT, is_weighted_sum=True)

AFFINE: Mapping[str, Affine] = {
    "getitem": FIRST_ARGUMENT,
    **same_rule(
        WEIGHTED_SUM,
        """
        conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding
        conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input convolution.default
        linear.default
        """,
    ),
    **same_rule(
        FIRST_ARGUMENT,
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
    **same_rule(
        ANY_ARGUMENT, "add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar rsub.Tensor"
    ),
    **same_rule(ANY_ARGUMENT, "cat.default stack.default hstack.default vstack.default where.self"),
    **same_rule(ANY_ARGUMENT, "scatter.src scatter.value scatter_add.default index_add.default"),
    # `torch.export` turns writes through a view into these.
    **same_rule(ANY_ARGUMENT, "slice_scatter.default select_scatter.default index_put.default"),
    **same_rule(Affine(replacement=_copy), "copy.default"),
    # A detached value still determines the output, so the linear network passes it on.
    **same_rule(Affine(replacement=_identity), "detach.default"),
    **same_rule(
        replace(WEIGHTED_SUM, refuse=_refuse_batch_statistics, replacement=batch_norm),
        "batch_norm.default",
    ),
    **same_rule(
        replace(WEIGHTED_SUM, refuse=_refuse_batch_statistics),
        "_native_batch_norm_legit.default",
    ),
    **same_rule(
        replace(WEIGHTED_SUM, replacement=decomposed_batch_norm),
        "_native_batch_norm_legit_no_training.default",
    ),
    **same_rule(
        replace(FIRST_ARGUMENT, refuse=_refuse_random),
        "dropout.default feature_dropout.default alpha_dropout.default "
        "feature_alpha_dropout.default native_dropout.default",
    ),
    **same_rule(
        replace(FIRST_ARGUMENT, refuse=_refuse_integer_cast),
        "_to_copy.default to.dtype to.dtype_layout to.device",
    ),
    "aten.type_as.default": TypeAs(linear_in=frozenset({0})),
    # The linear network's activations may have other strides than the model's; a view would then
    # fail, while a reshape copies.
    **same_rule(
        replace(FIRST_ARGUMENT, replacement=aten.reshape.default),
        "view.default _unsafe_view.default",
    ),
}
