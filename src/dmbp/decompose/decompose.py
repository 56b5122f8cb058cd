"""Learns the masks of a linear network and reads the decomposition out (Algorithm 1)."""

import warnings
from contextlib import suppress
from dataclasses import replace

import torch

from dmbp.decompose.decomposition import Decomposition, History
from dmbp.decompose.initialisation import initial_logits
from dmbp.decompose.objective import OBJECTIVES
from dmbp.decompose.reference import reference_for
from dmbp.decompose.settings import Settings
from dmbp.engine import Engine, OnIteration, Readout, Terms, engine_for
from dmbp.errors import CaptureError, InputError
from dmbp.linear import LinearNetwork
from dmbp.linear.network import NO_SITES
from dmbp.linear.precision import full_precision, repeatable

TOO_NARROW = (
    "some activations or gradients of this model are beyond float16's range: its masks are learned "
    'in bfloat16; precision="bfloat16" does so from the start'
)


class OutOfRange(Exception):
    """Masks were learned from numbers beyond float16's range; `widened` settings go further."""


def decompose(
    net: LinearNetwork, settings: Settings, *, on_iteration: OnIteration = None
) -> Decomposition:
    """Split the score of every row of `net`; `on_iteration` is called after each iteration."""
    with suppress(OutOfRange):
        return attempt(net, settings, on_iteration=on_iteration)
    if settings.precision != "auto":
        warnings.warn(TOO_NARROW, stacklevel=2)
    return replace(attempt(net, widened(settings)), settings=settings)


@full_precision()
@repeatable()
def attempt(
    net: LinearNetwork, settings: Settings, *, on_iteration: OnIteration = None
) -> Decomposition:
    """The decomposition in the precision that the settings ask for, where its range suffices."""
    try:
        engine = starting(net, settings)
        past = engine.learn(settings.iterations, on_iteration)
        readout = engine.readout()
        return confirmed(decomposition(net, settings, past, readout), engine, past)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if net.other_dtypes:
            raise CaptureError(_mixed(net)) from error
        raise


def widened(settings: Settings) -> Settings:
    """The settings with bfloat16's range in place of float16's, on a GPU."""
    is_narrow = settings.precision in ("auto", "float16")
    return replace(settings, precision="bfloat16") if is_narrow else settings


def _mixed(net: LinearNetwork) -> str:
    own, other = net.inputs.dtype, net.other_dtypes[0]
    return (
        f"parts of the model compute in {other} while its inputs are {own}, as torch.autocast "
        "inside forward() does, and masks are learned in one precision; explain the model without "
        f"it, or model.to({other}) and inputs.to({other})"
    )


def starting(net: LinearNetwork, settings: Settings) -> Engine:
    """An engine at the masks that learning starts from."""
    if not net.sites:
        raise CaptureError(NO_SITES)
    return engine_for(
        net,
        initial_logits(net),
        loss=OBJECTIVES[settings.objective],
        learning_rate=settings.learning_rate,
        precision=settings.precision,
    )


def confirmed(found: Decomposition, engine: Engine, past: Terms) -> Decomposition:
    """A decomposition, if numbers could hold what was learned."""
    if not engine.is_in_range(past):
        raise OutOfRange
    if not torch.isfinite(torch.stack([found.positive_output, found.negative_output])).all():
        raise InputError(
            f"the terms grew beyond what {found.inputs.dtype} can hold; use float32, or a smaller "
            "learning rate"
        )
    return found


def decomposition(
    net: LinearNetwork, settings: Settings, past: Terms, readout: Readout
) -> Decomposition:
    """What was learned; a GPU's answers are not waited for."""
    return Decomposition(
        inputs=net.inputs,
        reference=reference_for(net.inputs, settings.reference),
        positive_map=readout.positive_map,
        negative_map=readout.negative_map,
        output=readout.terms.output,
        positive_output=readout.terms.positive,
        negative_output=readout.terms.negative,
        history=History(past.positive, past.negative, past.nuisance),
        targets=net.rows.labels,
        image=net.rows.image,
        exactness=net.exactness,
        approximation_error=net.approximation_error,
        settings=settings,
    )
