"""The engine for GPUs: half precision where it is harmless, few kernels, one graph an iteration.

The network's activations and gradients have 16 bits, in channels-last order, both streams in one
batch; in float16 both are scaled (`units`, `scaling`). All that happens at a site is one kernel
each way (`triton_kernels`), with the bias, sum or batch norm before it and the max-pooling behind
it; going back, the loss touches one stream of each row, and only that is computed. What x alone
decides runs once, as do the steps after the last site (`tail`). The rest is convolutions, those of
few pixels in parts (`splitting`), and operations without a path of their own, which run as they
are. A whole iteration is recorded as a CUDA graph, of few rows with branches side by side
(`lanes`). Where masks start and how maps are read is done in the network's own precision.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

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
from dmbp.engine.gpu.state import HISTORY_SLOTS, GradientRange, start
from dmbp.engine.gpu.torch_site import TorchScores, TorchSite
from dmbp.engine.plan.operations import operation
from dmbp.engine.plan.plan import plan_of, walk
from dmbp.engine.plan.tail import Tail
from dmbp.engine.readout import read_out
from dmbp.linear import LinearNetwork
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.steps import Step

_rehearsed: set[Any] = set()
"""What programs have been compiled for, in this process."""


class GpuEngine:
    """Learns the masks of a linear network, starting from `logits`.

    `dtype` is that of activations and gradients; where it has 16 bits, masks do too. In float16
    numbers may be out of range: `is_in_range` tells. `triton` switches its kernels off, for where
    there is no Triton.
    """

    def __init__(
        self,
        net: LinearNetwork,
        logits: Logits,
        *,
        loss: Loss,
        learning_rate: float,
        dtype: torch.dtype = torch.float16,
        allow_tf32: bool = False,
        triton: bool = True,
    ) -> None:
        assert plan_of(net).rows_first
        self._net = net
        self._allow_tf32 = allow_tf32
        self._triton = triton
        self._sites: dict[str, GpuSite] = {}
        self._program: list[GpuInstruction] = []
        self._stream = torch.cuda.Stream() if net.inputs.is_cuda else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._refuses = False
        self._seen: GradientRange | None = None
        with torch.no_grad(), self._aside():
            plan = plan_of(net)
            unit = unit_of([p.step for p in plan.program if not p.is_constant], dtype)
            self._learning = start(loss, learning_rate, dtype=dtype, unit=unit, tail=plan.tail)
            self._output = net.score(net.frozen.output)
            self._build(logits)

    @property
    def logits(self) -> Logits:
        """The learned scalars as they stand."""
        return {name: site.logits for name, site in self._sites.items()}

    def step(self) -> Terms:
        """One iteration of RMSProp; the terms before it."""
        past = self.learn(1)
        return Terms(self._output, past.positive[0], past.negative[0])

    @torch.no_grad()
    def learn(self, iterations: int, on_iteration: OnIteration = None) -> Terms:
        """Many iterations; the terms before each."""
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
        """The terms and linear maps at the masks as they stand."""
        if self._learning.dtype == torch.float16:
            self._seen = GradientRange(self._learning.scales, self._learning.loss)
        return read_out(self._net, self._output, lambda: self.logits, self._past_masks)

    def is_in_range(self, past: Terms) -> bool:
        """Whether float16 could hold what was met, by the terms of iterations and the read-out.

        An activation beyond it is infinite, and so is a term it reaches.
        """
        if self._learning.dtype != torch.float16:
            return True
        verdict = torch.isfinite(torch.stack([past.positive, past.negative])).all()
        return bool(verdict if self._seen is None else verdict & self._seen.fits())

    @property
    def is_recorded(self) -> bool:
        """Whether iterations are replayed from a graph by now."""
        return self._graph is not None

    def _past_masks(self, step: Step, gradient: Tensor) -> Tensor:
        """Both streams' gradients past a gate, with masks as they stand."""
        assert isinstance(step.function, ElementwiseLine)
        assert step.site is not None
        return self._sites[step.site.name].past(gradient, step.function.slope, self._seen)

    def _rehearse(self) -> None:
        """See that all kernels are compiled."""
        shapes = tuple(planned.step.shape for planned in plan_of(self._net).program)
        key = (shapes, self._learning.dtype, self._learning.loss)
        if self._triton and self._stream is not None and key not in _rehearsed:
            from dmbp.engine.gpu.triton.launch import rehearsing

            with rehearsing():
                self._iteration.run()
            _rehearsed.add(key)

    def _record(self) -> None:
        """Record an iteration; some operation may not allow it, and then none is."""
        assert self._stream is not None
        lanes = self._iteration.lanes if self._learning.rows <= FEW_ROWS else 1
        others = [torch.cuda.Stream() for _ in range(1, lanes)]
        streams = [self._stream, *others] if others else []
        graph = torch.cuda.CUDAGraph()
        try:  # other threads may compile, or compute, meanwhile
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._iteration.run(streams)
            self._graph = graph
        except RuntimeError:
            self._refuses = True

    @contextmanager
    def _aside(self) -> Generator[None]:
        """On the engine's own stream, where a graph can be recorded, in step with the caller's."""
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
        plan, dtype, unit = plan_of(self._net), self._learning.dtype, self._learning.unit
        constant = {0} | {p.step.output for p in plan.program if p.is_constant}
        steps = [planned.step for planned in plan.program]
        merging = merging_of(steps, constant | set(plan.tail.gradients), pooling=self._triton)
        values: dict[int, Any] = {0: self._net.inputs}
        nothing = self._net.inputs.new_zeros((), dtype=dtype)
        for planned, examples in walk(steps, self._net.inputs):
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
                chosen = operation(cast(in_unit(step, unit), dtype, biased=biased), own)
                self._program.append(PlainInstruction(chosen, step.output, self._learning))
        if self._triton and self._learning.is_compact:
            self._split(merging)
        for part in self._program:
            if isinstance(part, PlainInstruction):
                part.prepare()  # here, where a recording of the start includes it
        read = set(plan.tail.gradients).union(*(part.reads for part in self._program))
        constants = {k: constant_value(v, dtype, unit) for k, v in values.items() if k in read}
        self._iteration = Iteration(
            self._program, constants, plan.tail.gradients, self._scores(plan.tail), dtype=dtype
        )

    def _split(self, merging: Merging) -> None:
        """Split convolutions before a site and after one, where that is faster."""
        from dmbp.engine.gpu.triton.split_convolution import split

        sites = [merged for merged in merging.gates.values() if merged.pooling is None]
        ends = set(plan_of(self._net).tail.gradients)
        self._program = split(self._program, sites, ends=ends, learning=self._learning)

    def _scores(self, tail: Tail) -> Scores:
        by_unit = {index: part / self._learning.unit for index, part in tail.gradients.items()}
        tail = replace(tail, gradients=by_unit)
        if self._triton:
            from dmbp.engine.gpu.triton.scores import TritonScores

            return TritonScores(tail, self._output, self._learning)
        return TorchScores(tail, self._output, self._learning)

    def _site(self, merged: Merged, logits: Logits, *, goes_on: bool) -> SiteInstruction:
        assert merged.gate.site is not None
        name = merged.gate.site.name
        kind: Any = TorchSite
        if self._triton:
            from dmbp.engine.gpu.triton.pooled_site import PooledTritonSite
            from dmbp.engine.gpu.triton.site import TritonSite

            kind = TritonSite if merged.pooling is None else PooledTritonSite
        self._sites[name] = kind(merged, logits[name], self._learning)
        return SiteInstruction(merged, self._sites[name], goes_on=goes_on)

    def _iterate_once(self) -> None:
        """An iteration, recorded or to be recorded."""
        if self._graph is not None:
            self._graph.replay()
            return
        self._rehearse()
        self._iteration.run()  # in which libraries choose their kernels
        if self._stream is not None and not self._refuses:
            self._record()
