"""Engines that learn the masks of a linear network and read out its terms and linear maps.

An explanation passes through this package in one direction:

1. `plan_for` turns a `LinearNetwork` into an `ExecutionPlan` (`plan/`): steps as operations with
   transposes, in an order and memory layout that all engines share.
2. `engine_for` (`select.py`) chooses the engine for the network's device and precision:
   `CpuEngine` (`cpu/`), `GpuEngine` (`gpu/`, with Triton or plain PyTorch as its back end), or
   `AutogradEngine` (`autograd.py`), which takes every network and is what the others are tested
   against.
3. `engine.learn` minimises the loss over the masks with RMSProp and returns the `Terms` before
   every iteration. `base.py` defines the terms, the loss and the engine interface.
4. `engine.readout` returns the terms and the two linear maps at the learned masks (`readout.py`).

`prepare` compiles GPU kernels in the background while a network is still being captured.

Methods that run the model itself on many images do so through `ForwardPasses` (`forward/`), and may
make these images by `replace_pixels`.

Glossary:

- row: one target of one image; rows are learned independently of each other;
- site: the output of an activation, which carries one mask for each element;
- gate: the step at a site, the activation frozen at x as slope ⊙ z + offset;
- logit: the learned scalar of a mask, σ = sigmoid(logit);
- stream: one of two passes through the network, masked by σ (positive) or 1−σ (negative);
- term: one of three parts of a score, y = y⁺ + y⁻ + y~ (positive, negative and nuisance);
- seed: the loss's gradient with respect to a stream's score;
- tail: the steps after the last sites, reduced to one affine function;
- lane: a CUDA stream, renamed because "stream" has the meaning above.
"""

from dmbp.engine.autograd import AutogradEngine
from dmbp.engine.base import Engine, Logits, Loss, OnIteration, Readout, Terms
from dmbp.engine.cpu.engine import CpuEngine
from dmbp.engine.forward.forward_pass import (
    ForwardPass,
    ForwardPasses,
    PendingFingerprint,
    fast_forward,
    fingerprint,
    input_gradients,
    run_padded,
)
from dmbp.engine.forward.recording import RecordedBatch
from dmbp.engine.select import (
    MAX_BYTES_PER_ELEMENT,
    PRECISIONS,
    TYPICAL_BYTES_PER_ELEMENT,
    engine_for,
    has_gpu_engine,
    plan_for,
    prepare,
    replace_pixels,
)

__all__ = [
    "MAX_BYTES_PER_ELEMENT",
    "PRECISIONS",
    "TYPICAL_BYTES_PER_ELEMENT",
    "AutogradEngine",
    "CpuEngine",
    "Engine",
    "ForwardPass",
    "ForwardPasses",
    "Logits",
    "Loss",
    "OnIteration",
    "PendingFingerprint",
    "Readout",
    "RecordedBatch",
    "Terms",
    "engine_for",
    "fast_forward",
    "fingerprint",
    "has_gpu_engine",
    "input_gradients",
    "plan_for",
    "prepare",
    "replace_pixels",
    "run_padded",
]
