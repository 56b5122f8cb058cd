"""The engine for GPUs: 16-bit arithmetic where it is harmless, few kernels, and a CUDA graph.

- Activations and gradients are 16-bit by default, in channels-last memory, with both streams in one
  batch. In float16 both are scaled into its range (`half_precision.py`).
- A site runs as one kernel in each direction (`triton/site.py`), together with the bias, sum or
  batch norm before it and the max-pooling after it (`fusion.py`). The paper's loss has a non-zero
  gradient in only one stream of each row, so the backward pass computes only that stream.
- Values that depend on x alone are computed once, and so are the steps after the last site
  (`engine/plan/tail.py`).
- The rest is convolutions, which are split into parts if they have few pixels
  (`triton/split_convolution.py`), and other affine operations, which PyTorch runs.
- A whole iteration (`program.py`) is captured as a CUDA graph and replayed. For few rows,
  independent branches of the network run side by side (`lanes.py`).

Initial masks and the read-out are computed in the network's own precision. The back end (Triton, or
plain PyTorch) is passed in.
"""

from collections.abc import Callable, Generator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dmbp.engine.base import Logits, Loss, OnIteration, Readout, Terms
from dmbp.engine.gpu.fusion import FusedGate, FusionPlan, plan_fusion
from dmbp.engine.gpu.half_precision import (
    GradientRange,
    activation_unit,
    cast_example,
    cast_step,
    float32_accumulation,
    scale_constants,
)
from dmbp.engine.gpu.lanes import MAX_ROWS_FOR_LANES
from dmbp.engine.gpu.learning_state import LearningState, initial_state
from dmbp.engine.gpu.program import (
    AffineInstruction,
    GpuInstruction,
    GpuSite,
    Iteration,
    LossHead,
    SiteInstruction,
    constant_value,
)
from dmbp.engine.plan.operations import choose_operation
from dmbp.engine.plan.plan import ExecutionPlan, plan_steps
from dmbp.engine.plan.tail import Tail
from dmbp.engine.readout import read_out
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.steps import LinearStep


class GpuBackend(Protocol):
    """Makes the parts of a program whose kernels differ between Triton and plain PyTorch.

    Attributes:
        fuses_pooling: Whether a site may include the max-pooling after it.
    """

    fuses_pooling: bool

    def site(self, fused: FusedGate, logits: Tensor, learning: LearningState) -> GpuSite:
        """Return a site that starts from these logits."""
        ...

    def loss_head(self, tail: Tail, output: Tensor, learning: LearningState) -> LossHead:
        """Return the loss head, which computes terms and seeds after the forward pass."""
        ...

    def split_convolutions(
        self,
        program: Sequence[GpuInstruction],
        sites: Sequence[FusedGate],
        *,
        ends: Set[int],
        learning: LearningState,
    ) -> list[GpuInstruction]:
        """Return the program with convolutions next to sites split into parts if that is faster.

        Args:
            program: The instructions in order.
            sites: Fused gates that can add up a split convolution's parts.
            ends: The indices of values that the tail reads.
            learning: The shared state.
        """
        ...

    def compile(self, key: Any, run: Callable[[], None]) -> None:
        """Compile every kernel that `run` launches, unless that was done for the same `key`."""
        ...


class GpuEngine:
    """Learns the masks of a linear network on a GPU, starting from `logits`.

    Args:
        plan: The network's execution plan; rows must be dimension 0 at every site.
        logits: The initial logits.
        loss: The loss to minimise.
        learning_rate: RMSProp's learning rate.
        dtype: The dtype of activations and gradients. If it is 16-bit, the back end may store masks
            in 16 bits too. float16 may overflow, which `is_in_range` reports.
        allow_tf32: Whether float32 products may be computed in TF32.
        backend: Makes sites, the loss head and split convolutions.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        logits: Logits,
        *,
        loss: Loss,
        learning_rate: float,
        dtype: torch.dtype = torch.float16,
        allow_tf32: bool = False,
        backend: GpuBackend,
    ) -> None:
        assert plan.rows_first
        self._plan = plan
        self._allow_tf32 = allow_tf32
        self._backend = backend
        self._sites: dict[str, GpuSite] = {}
        self._program: list[GpuInstruction] = []
        # Where the GPU does something else besides, iterations go first.
        self._stream = torch.cuda.Stream(priority=-1) if plan.net.inputs.is_cuda else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._cannot_capture = False
        self._gradient_range: GradientRange | None = None
        with torch.no_grad(), self._on_own_stream():
            unit = activation_unit([p.step for p in plan.program if not p.is_constant], dtype)
            self._learning = initial_state(
                loss, learning_rate, dtype=dtype, unit=unit, tail=plan.tail
            )
            self._output = plan.net.score(plan.net.frozen.output)
            self._build(logits)

    @property
    def logits(self) -> Logits:
        """The current mask logits, by site name."""
        return {name: site.logits for name, site in self._sites.items()}

    def step(self) -> Terms:
        """Run one iteration of RMSProp and return the terms before it."""
        history = self.learn(1)
        return Terms(self._output, history.positive[0], history.negative[0])

    @torch.no_grad()
    def learn(self, iterations: int, on_iteration: OnIteration = None) -> Terms:
        """Run iterations and return the terms before each, (iterations, rows)."""
        history = [self._output.new_zeros(0, 2, len(self._output), dtype=torch.float32)]
        slots = self._learning.history_slots
        with self._on_own_stream():
            for start in range(0, iterations, slots):
                count = min(slots, iterations - start)
                self._learning.history_start.copy_(self._learning.iteration)
                for _ in range(count):
                    self._iterate_once()
                    if on_iteration is not None:
                        on_iteration()
                history.append(self._learning.history[:count].clone())
        positive, negative = torch.cat(history).unbind(1)
        return Terms(self._output, positive.contiguous(), negative.contiguous())

    def readout(self) -> Readout:
        """Return the terms and linear maps at the current masks."""
        if self._learning.dtype == torch.float16:
            self._gradient_range = GradientRange(self._learning.scales, self._learning.loss)
        return read_out(self._plan, self._output, lambda: self.logits, self._pass_gate)

    def is_in_range(self, past: Terms) -> bool:
        """Return whether all numbers fitted into float16, judging by the terms and the read-out.

        An activation that overflows becomes infinite, and no term that depends on it stays finite.
        """
        if self._learning.dtype != torch.float16:
            return True
        verdict = torch.isfinite(torch.stack([past.positive, past.negative])).all()
        return bool(
            verdict if self._gradient_range is None else verdict & self._gradient_range.fits()
        )

    @property
    def is_captured(self) -> bool:
        """Whether iterations are replayed from a CUDA graph."""
        return self._graph is not None

    def _build(self, logits: Logits) -> None:
        """Turn the plan into a program, and the program into an iteration."""
        plan, dtype, unit = self._plan, self._learning.dtype, self._learning.unit
        constant = {0} | {p.step.output for p in plan.program if p.is_constant}
        steps = [planned.step for planned in plan.program]
        fusion = plan_fusion(
            steps, constant | set(plan.tail.gradients), pooling=self._backend.fuses_pooling
        )
        values: dict[int, Any] = {0: plan.net.inputs}
        scalar = plan.net.inputs.new_zeros((), dtype=dtype)
        for planned, examples in plan_steps(steps, plan.net.inputs, plan.kernels):
            step = planned.step
            if planned.is_constant:
                values[step.output] = step.apply(values)
            elif step.site is not None:
                fused = fusion.gates[step.output]
                needs_input_gradient = any(index not in constant for index in fused.terms)
                self._program.append(
                    self._site(fused, logits, needs_input_gradient=needs_input_gradient)
                )
            elif step.output not in fusion.absorbed:
                inputs = [cast_example(example, scalar) for example in examples]
                biased = step.output not in fusion.unbiased
                scaled = cast_step(scale_constants(step, unit), dtype, biased=biased)
                affine = choose_operation(scaled, inputs, plan.kernels)
                self._program.append(AffineInstruction(affine, step.output, self._learning))
        if self._learning.is_compact:
            self._split_convolutions(fusion)
        for part in self._program:
            if isinstance(part, AffineInstruction):
                part.prepare()  # now, so that a captured graph of a whole explanation includes it
        read = set(plan.tail.gradients).union(*(part.reads for part in self._program))
        constants = {k: constant_value(v, dtype, unit) for k, v in values.items() if k in read}
        self._iteration = Iteration(
            self._program, constants, plan.tail.gradients, self._loss_head(plan.tail), dtype=dtype
        )

    def _site(
        self, fused: FusedGate, logits: Logits, *, needs_input_gradient: bool
    ) -> SiteInstruction:
        """Make a fused gate's site and the instruction that runs it."""
        assert fused.gate.site is not None
        name = fused.gate.site.name
        self._sites[name] = self._backend.site(fused, logits[name], self._learning)
        return SiteInstruction(fused, self._sites[name], needs_input_gradient=needs_input_gradient)

    def _split_convolutions(self, fusion: FusionPlan) -> None:
        """Split convolutions next to sites without max-pooling if that is faster."""
        sites = [fused for fused in fusion.gates.values() if fused.pooling is None]
        ends = set(self._plan.tail.gradients)
        self._program = self._backend.split_convolutions(
            self._program, sites, ends=ends, learning=self._learning
        )

    def _loss_head(self, tail: Tail) -> LossHead:
        """Make the loss head, whose tail gradients are divided by the activations' unit."""
        by_unit = {index: part / self._learning.unit for index, part in tail.gradients.items()}
        tail = replace(tail, gradients=by_unit)
        return self._backend.loss_head(tail, self._output, self._learning)

    def _iterate_once(self) -> None:
        """Run an iteration: replay the CUDA graph, or run eagerly and then capture one."""
        if self._graph is not None:
            self._graph.replay()
            return
        self._compile()
        self._iteration.run()  # cuDNN and cuBLAS select their kernels here, before a capture
        if self._stream is not None and not self._cannot_capture:
            self._capture()

    def _compile(self) -> None:
        """Compile all kernels of an iteration in parallel, before the first one runs."""
        if self._stream is not None:
            shapes = tuple(planned.step.shape for planned in self._plan.program)
            key = (shapes, self._learning.dtype, self._learning.loss)
            self._backend.compile(key, self._iteration.run)

    def _capture(self) -> None:
        """Capture an iteration as a CUDA graph, unless one of its operations cannot be captured."""
        assert self._stream is not None
        lanes = self._iteration.lanes if self._learning.rows <= MAX_ROWS_FOR_LANES else 1
        others = [torch.cuda.Stream(priority=-1) for _ in range(1, lanes)]
        streams = [self._stream, *others] if others else []
        graph = torch.cuda.CUDAGraph()
        try:  # in thread-local mode, because other threads may use CUDA meanwhile
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._iteration.run(streams)
            self._graph = graph
        except RuntimeError:
            self._cannot_capture = True

    @contextmanager
    def _on_own_stream(self) -> Generator[None]:
        """Switch to the engine's own CUDA stream, synchronised with the caller's.

        A CUDA graph cannot be captured on the default stream.
        """
        with float32_accumulation(allow_tf32=self._allow_tf32):
            if self._stream is None:
                yield
            else:
                outside = torch.cuda.current_stream()
                self._stream.wait_stream(outside)
                with torch.cuda.stream(self._stream):
                    yield
                outside.wait_stream(self._stream)

    def _pass_gate(self, step: LinearStep, gradient: Tensor) -> Tensor:
        """Pass both streams' gradients through a gate with its current masks."""
        assert isinstance(step.function, ElementwiseLine)
        assert step.site is not None
        return self._sites[step.site.name].pass_gradient(
            gradient, step.function.slope, self._gradient_range
        )
