"""The engine for GPUs: half precision where it is harmless, few kernels, one CUDA graph a step.

- Activations and gradients have 16 bits, in channels-last order, both streams in one batch. In
  float16 both are scaled into its range (`precision.py`, `state.py`).
- Everything that happens at a site is one kernel each way (`triton/site.py`), together with the
  bias, sum or batch norm before it and the max-pooling after it (`merging.py`). On the way back the
  loss touches one stream of each row, and only that one is computed.
- What x alone determines is computed once, and so are the steps after the last site
  (`engine/plan/tail.py`).
- The rest is convolutions, those of few pixels split into parts (`triton/split_convolution.py`),
  and operations without a path of their own, which run as they are.
- A whole iteration is recorded as a CUDA graph; for few rows, branches of the network run side by
  side (`lanes.py`).

Where masks start and how maps are read out is computed in the network's own precision. The back end
(Triton, or plain PyTorch) is handed in.
"""

from collections.abc import Callable, Generator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dmbp.engine.base import Logits, Loss, OnIteration, Readout, Terms
from dmbp.engine.gpu.lanes import FEW_ROWS
from dmbp.engine.gpu.merging import Merged, Merging, merging_of
from dmbp.engine.gpu.precision import (
    cast,
    cast_example,
    constant_value,
    in_unit,
    sums_in_single_precision,
    unit_of,
)
from dmbp.engine.gpu.program import (
    GpuInstruction,
    GpuSite,
    Iteration,
    PlainInstruction,
    Scores,
    SiteInstruction,
)
from dmbp.engine.gpu.state import HISTORY_SLOTS, GradientRange, LearningState, start
from dmbp.engine.plan.operations import operation
from dmbp.engine.plan.plan import ExecutionPlan, plan_steps
from dmbp.engine.plan.tail import Tail
from dmbp.engine.readout import read_out
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.steps import Step


class GpuBackend(Protocol):
    """Makes the parts of a program that depend on how kernels are written.

    Attributes:
        merges_pooling: Whether a site may include the max-pooling after it.
    """

    merges_pooling: bool

    def site(self, merged: Merged, logits: Tensor, learning: LearningState) -> GpuSite:
        """Return a site that starts from these logits."""
        ...

    def scores(self, tail: Tail, output: Tensor, learning: LearningState) -> Scores:
        """Return what computes the terms and the loss's seeds at the end of the forward pass."""
        ...

    def split_convolutions(
        self,
        program: Sequence[GpuInstruction],
        sites: Sequence[Merged],
        *,
        ends: Set[int],
        learning: LearningState,
    ) -> list[GpuInstruction]:
        """Return the program with convolutions next to `sites` split where that is faster."""
        ...

    def compile(self, key: Any, run: Callable[[], None]) -> None:
        """Compile every kernel that `run` launches, unless done before for the same `key`."""
        ...


class GpuEngine:
    """Learns the masks of a linear network, starting from `logits`.

    Args:
        plan: The network's execution plan; rows must be dimension 0 at every site.
        logits: The initial logits.
        loss: The loss to minimise.
        learning_rate: RMSProp's learning rate.
        dtype: The dtype of activations and gradients; where it has 16 bits, masks have 16 bits too.
            In float16 numbers may be out of range, which `is_in_range` reports.
        allow_tf32: Whether float32 products may be computed in TF32.
        backend: How sites, scores and split convolutions are computed.
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
        self._stream = torch.cuda.Stream() if plan.net.inputs.is_cuda else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._cannot_record = False
        self._seen: GradientRange | None = None
        with torch.no_grad(), self._aside():
            unit = unit_of([p.step for p in plan.program if not p.is_constant], dtype)
            self._learning = start(loss, learning_rate, dtype=dtype, unit=unit, tail=plan.tail)
            self._output = plan.net.score(plan.net.frozen.output)
            self._build(logits)

    @property
    def logits(self) -> Logits:
        """The current value of the learned scalars."""
        return {name: site.logits for name, site in self._sites.items()}

    def step(self) -> Terms:
        """Run one iteration of RMSProp and return the terms before it."""
        past = self.learn(1)
        return Terms(self._output, past.positive[0], past.negative[0])

    @torch.no_grad()
    def learn(self, iterations: int, on_iteration: OnIteration = None) -> Terms:
        """Run several iterations and return the terms before each."""
        past = [self._output.new_zeros(0, 2, len(self._output), dtype=torch.float32)]
        with self._aside():
            for start in range(0, iterations, HISTORY_SLOTS):
                count = min(HISTORY_SLOTS, iterations - start)
                self._learning.since.copy_(self._learning.iteration)
                for _ in range(count):
                    self._iterate_once()
                    if on_iteration is not None:
                        on_iteration()
                past.append(self._learning.past[:count].clone())
        positive, negative = torch.cat(past).unbind(1)
        return Terms(self._output, positive.contiguous(), negative.contiguous())

    def readout(self) -> Readout:
        """Return the terms and linear maps at the current masks."""
        if self._learning.dtype == torch.float16:
            self._seen = GradientRange(self._learning.scales, self._learning.loss)
        return read_out(self._plan, self._output, lambda: self.logits, self._through_masks)

    def is_in_range(self, past: Terms) -> bool:
        """Return whether float16 could represent all numbers, by the terms and the read-out.

        An activation beyond its range becomes infinite, and so does a term that it reaches.
        """
        if self._learning.dtype != torch.float16:
            return True
        verdict = torch.isfinite(torch.stack([past.positive, past.negative])).all()
        return bool(verdict if self._seen is None else verdict & self._seen.fits())

    @property
    def is_recorded(self) -> bool:
        """Whether iterations are replayed from a CUDA graph."""
        return self._graph is not None

    def _through_masks(self, step: Step, gradient: Tensor) -> Tensor:
        """Pass both streams' gradients through a gate with its current masks."""
        assert isinstance(step.function, ElementwiseLine)
        assert step.site is not None
        return self._sites[step.site.name].past(gradient, step.function.slope, self._seen)

    def _compile(self) -> None:
        """Compile all kernels of an iteration at once, before the first one runs."""
        if self._stream is not None:
            shapes = tuple(planned.step.shape for planned in self._plan.program)
            key = (shapes, self._learning.dtype, self._learning.loss)
            self._backend.compile(key, self._iteration.run)

    def _record(self) -> None:
        """Record an iteration as a CUDA graph, unless one of its operations does not allow it."""
        assert self._stream is not None
        lanes = self._iteration.lanes if self._learning.rows <= FEW_ROWS else 1
        others = [torch.cuda.Stream() for _ in range(1, lanes)]
        streams = [self._stream, *others] if others else []
        graph = torch.cuda.CUDAGraph()
        try:  # other threads may compile or compute in the meantime
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._iteration.run(streams)
            self._graph = graph
        except RuntimeError:
            self._cannot_record = True

    @contextmanager
    def _aside(self) -> Generator[None]:
        """Work on the engine's own CUDA stream, synchronised with the caller's.

        A CUDA graph cannot be recorded on the default stream.
        """
        with sums_in_single_precision(allow_tf32=self._allow_tf32):
            if self._stream is None:
                yield
            else:
                outside = torch.cuda.current_stream()
                self._stream.wait_stream(outside)
                with torch.cuda.stream(self._stream):
                    yield
                outside.wait_stream(self._stream)

    def _build(self, logits: Logits) -> None:
        """Turn the plan into a program."""
        plan, dtype, unit = self._plan, self._learning.dtype, self._learning.unit
        constant = {0} | {p.step.output for p in plan.program if p.is_constant}
        steps = [planned.step for planned in plan.program]
        merging = merging_of(
            steps, constant | set(plan.tail.gradients), pooling=self._backend.merges_pooling
        )
        values: dict[int, Any] = {0: plan.net.inputs}
        nothing = plan.net.inputs.new_zeros((), dtype=dtype)
        for planned, examples in plan_steps(steps, plan.net.inputs, plan.kernels):
            step = planned.step
            if planned.is_constant:
                values[step.output] = step.apply(values)
            elif step.site is not None:
                merged = merging.gates[step.output]
                goes_on = any(index not in constant for index in merged.terms)
                self._program.append(self._site(merged, logits, goes_on=goes_on))
            elif step.output not in merging.gone:
                own = [cast_example(example, nothing) for example in examples]
                biased = step.output not in merging.unbiased
                scaled = cast(in_unit(step, unit), dtype, biased=biased)
                chosen = operation(scaled, own, plan.kernels)
                self._program.append(PlainInstruction(chosen, step.output, self._learning))
        if self._learning.is_compact:
            self._split_convolutions(merging)
        for part in self._program:
            if isinstance(part, PlainInstruction):
                part.prepare()  # here, so that a recording of a whole explanation includes it
        read = set(plan.tail.gradients).union(*(part.reads for part in self._program))
        constants = {k: constant_value(v, dtype, unit) for k, v in values.items() if k in read}
        self._iteration = Iteration(
            self._program, constants, plan.tail.gradients, self._scores(plan.tail), dtype=dtype
        )

    def _split_convolutions(self, merging: Merging) -> None:
        """Split convolutions next to a site where that is faster."""
        sites = [merged for merged in merging.gates.values() if merged.pooling is None]
        ends = set(self._plan.tail.gradients)
        self._program = self._backend.split_convolutions(
            self._program, sites, ends=ends, learning=self._learning
        )

    def _scores(self, tail: Tail) -> Scores:
        by_unit = {index: part / self._learning.unit for index, part in tail.gradients.items()}
        tail = replace(tail, gradients=by_unit)
        return self._backend.scores(tail, self._output, self._learning)

    def _site(self, merged: Merged, logits: Logits, *, goes_on: bool) -> SiteInstruction:
        assert merged.gate.site is not None
        name = merged.gate.site.name
        self._sites[name] = self._backend.site(merged, logits[name], self._learning)
        return SiteInstruction(merged, self._sites[name], goes_on=goes_on)

    def _iterate_once(self) -> None:
        """Run an iteration from the CUDA graph; the first one is run as it is and then recorded."""
        if self._graph is not None:
            self._graph.replay()
            return
        self._compile()
        self._iteration.run()  # cuDNN and cuBLAS choose their kernels here
        if self._stream is not None and not self._cannot_record:
            self._record()
