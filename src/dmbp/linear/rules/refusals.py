"""Why operations cannot be frozen, and what to do about it.

The first row that the operation's name starts with counts. An operation without a row is refused
because it has no rule.

    >>> cause_of("aten.fft_rfft2.default").reason
    'its results are complex numbers'
"""

from collections.abc import Mapping
from dataclasses import dataclass

_EXPORT_IN_EVAL_MODE = "export a program in evaluation mode with model.eval()"

ADD_RULE = "add a rule for it, as CONTRIBUTING.md shows, or replace it in the model"


@dataclass(frozen=True)
class Cause:
    """Why an operation cannot be frozen at an input, and what its user can do."""

    reason: str
    way_out: str


_NO_RULE = Cause("it has no rule", ADD_RULE)

_CUSTOM = Cause(
    "it is a custom operation, which dmbp cannot look into",
    "write it with PyTorch's own operations while the model is explained",
)

COMPLEX = Cause(
    "its results are complex numbers",
    "write complex numbers as pairs of real ones",
)
"""Why an operation that makes complex numbers is refused, also a conversion to them."""

CONSTANT = Cause(
    "frozen at its value there, it leaves an output that does not depend on the input",
    "numbers that pass through .item() or .tolist(), labels and comparisons are constants, so "
    "compute the scores with tensors",
)
"""Why an output is refused that is constant around the input."""

_QUANTISED = Cause(
    "it rounds activations to integers, so its slope is zero",
    "explain the network in floating point, from before it was quantised",
)

_ROUNDS = Cause(
    "it rounds activations, so its slope is zero",
    "explain the network without rounding, such as a quantised network before its quantisation",
)

RANDOM = Cause(
    "it draws random numbers, so the model's output is not determined by its input",
    "draw them in training only, if self.training",
)
"""Why an operation is refused whose result is random in every mode."""

_BATCH_STATISTICS = Cause(
    "it normalises by the statistics of the batch, so images depend on each other",
    f"write training=self.training in forward(), and {_EXPORT_IN_EVAL_MODE}",
)

_WHOLE_BATCH = Cause(
    "it combines all images of the batch, so they depend on each other",
    "give it the dimensions of one image, such as x.amax((1, 2, 3))",
)

_CONDITION = Cause(
    "the values of a tensor decide what is computed",
    "compute both branches and select with torch.where, or explain the model with one of them",
)

_SPARSE = Cause(
    "it makes or reads a sparse tensor",
    "use dense tensors, .to_dense(), while the model is explained",
)

NO_STATISTICS = Cause(
    "it has no running statistics (track_running_stats=False), so it normalises by the statistics "
    "of the batch, and images depend on each other",
    "give it running statistics, or use a norm of each image, such as group or instance norm",
)
"""Why batch norm is refused although the model is in evaluation mode."""

_RECURRENT = "recurrent layers multiply gates over time: explain the layers after them"

REFUSALS: Mapping[str, Cause] = {
    "aten.fft_": Cause(
        "its results are complex numbers",
        "a Fourier transform is linear, so write it as products with the matrices of cosines and "
        "sines, or give the model its result as the input",
    ),
    **dict.fromkeys(
        ("aten.complex.", "aten.view_as_complex", "aten.polar", "aten.stft", "aten.istft"), COMPLEX
    ),
    **dict.fromkeys(
        ("aten.fake_quantize", "aten.quantize_per", "aten.dequantize", "quantized"), _QUANTISED
    ),
    **dict.fromkeys(
        ("aten.round", "aten.floor.", "aten.ceil.", "aten.trunc", "aten.fix", "aten.sign.",
         "aten.frac"), _ROUNDS
    ),
    **dict.fromkeys(
        ("aten.rand", "aten.normal", "aten.bernoulli", "aten.multinomial", "aten.poisson",
         "aten.binomial", "aten.exponential", "aten.uniform", "aten.rrelu"), RANDOM
    ),
    **dict.fromkeys(("aten.batch_norm", "aten._native_batch_norm_legit"), _BATCH_STATISTICS),
    "aten.dropout": Cause(
        "it draws random numbers, so the model's output is not determined by its input",
        f"write F.dropout(x, training=self.training) in forward(), and {_EXPORT_IN_EVAL_MODE}",
    ),
    **dict.fromkeys(
        ("aten.max.default", "aten.min.default", "aten.mean.default", "aten.median.default",
         "aten.std.default", "aten.var.default", "aten.prod.default"), _WHOLE_BATCH
    ),
    **dict.fromkeys(("cond", "while_loop", "scan"), _CONDITION),
    **dict.fromkeys(
        ("aten._to_sparse", "aten.to_sparse", "aten._sparse", "aten.sparse"), _SPARSE
    ),
    "aten.softmax": Cause(
        _NO_RULE.reason,
        "if it is the last layer, explain the model without it: the scores before it",
    ),
    "aten.lstm": Cause(_NO_RULE.reason, _RECURRENT),
    "aten.gru": Cause(_NO_RULE.reason, _RECURRENT),
    "aten.argmax": Cause(_NO_RULE.reason, "let the model return the scores instead of the label"),
}  # fmt: skip
"""Refusals by the start of an operation's name."""

OWN_NAMESPACES = ("aten.", "prims.", "higher_order.")


def cause_of(operation: str) -> Cause:
    """Return why an operation is refused, and what to do about it."""
    found = [cause for start, cause in REFUSALS.items() if operation.startswith(start)]
    if found:
        return found[0]
    is_custom = "." in operation and not operation.startswith(OWN_NAMESPACES)
    return _CUSTOM if is_custom else _NO_RULE
