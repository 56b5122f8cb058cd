"""A whole explanation as CUDA graphs: recorded once, replayed for every question of its kind.

Before the first iteration and after the last, an explanation is a thousand small operations, which
a GPU does faster than Python asks for them. All of it is recorded: freezing at x and the start of
the masks, and the read-out. (An iteration records itself.) Other pixels and other classes are then
copied in, and it is played again. What a recording holds of the model are the model's own tensors;
that its output is the model's is checked each time, when the GPU has all else to do: the model is
run while it learns.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from dmbp.decompose.decomposition import Decomposition
from dmbp.decompose.learn import check_finite, decomposition, make_engine
from dmbp.decompose.settings import Settings
from dmbp.engine import Engine, OnIteration, Readout, Terms, plan_for
from dmbp.errors import InexactCapture
from dmbp.linear import Linearizer, LinearNetwork, TargetRows
from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.freeze.exactness import check

Result = TypeVar("Result")


class Recording:
    """Questions of one kind: as many rows of images of one shape, learned with the same settings.

    `inputs`, `outputs` and `rows` are one such question.
    """

    def __init__(
        self,
        linearizer: Linearizer,
        captured: CapturedGraph,
        *,
        inputs: Tensor,
        outputs: Callable[[], Tensor],
        rows: TargetRows,
        settings: Settings,
    ) -> None:
        self._captured = captured
        self._inputs = inputs.clone()
        self._beside = torch.cuda.Stream()
        # Run where it will be from now on: libraries take memory when a stream is first used.
        weights, constant = rows.tangent(self._run_beside(outputs, _now()))
        self._tangent = (weights.clone(), constant.clone())
        self._pool = torch.cuda.graph_pool_handle()

        def begin() -> tuple[LinearNetwork, Engine]:
            frozen = linearizer.frozen_by(captured, self._inputs)
            net = LinearNetwork(frozen, self._inputs, rows, tangent=self._tangent)
            return net, make_engine(plan_for(net), settings)

        self._begin, (self._net, self._engine) = self._recorded(begin)
        self._end: torch.cuda.CUDAGraph | None = None
        self._read: Readout | None = None

    def decompose(
        self,
        inputs: Tensor,
        outputs: Callable[[], Tensor],
        *,
        rows: TargetRows,
        settings: Settings,
        on_iteration: OnIteration = None,
    ) -> Decomposition:
        """The decomposition of another question of the kind."""
        weights = self._tangent[0]
        if weights.shape[1] != rows.classes:
            raise InexactCapture("the model has other classes than when it was recorded")
        asked = _now()
        self._inputs.copy_(inputs)
        at = torch.zeros_like(weights) if rows.is_linear else outputs()
        for kept, part in zip(self._tangent, rows.tangent(at), strict=True):
            kept.copy_(part)
        self._begin.replay()
        past = self._engine.learn(settings.iterations, on_iteration)
        readout = self._readout()
        model_outputs = self._run_beside(outputs, asked)
        net = LinearNetwork(self._net.frozen, inputs, rows, tangent=self._tangent)
        found = decomposition(net, settings, past, readout)
        exactness = check(self._captured, self._net.frozen, inputs, model_outputs)
        return replace(check_finite(found, self._engine, past), exactness=exactness)

    def _run_beside(self, outputs: Callable[[], Tensor], asked: torch.cuda.Event) -> Tensor:
        """The model's outputs; it is run beside the iterations, once all was there to be asked."""
        self._beside.wait_event(asked)
        with torch.cuda.stream(self._beside):
            found = outputs()
        torch.cuda.current_stream().wait_stream(self._beside)
        found.record_stream(torch.cuda.current_stream())
        return found

    def _readout(self) -> Readout:
        """Copies of what is read out, which the next question overwrites."""
        if self._end is None:
            self._end, self._read = self._recorded(self._engine.readout)
        self._end.replay()
        assert self._read is not None
        terms = self._read.terms
        return Readout(
            Terms(terms.output.clone(), terms.positive.clone(), terms.negative.clone()),
            self._read.positive_map.clone(),
            self._read.negative_map.clone(),
        )

    def _recorded(self, action: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = action()
        return graph, result


def _now() -> torch.cuda.Event:
    """After all that was asked of the GPU so far."""
    event = torch.cuda.Event()
    event.record()
    return event
