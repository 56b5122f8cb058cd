"""A whole explanation as CUDA graphs: recorded once, replayed for every question of its kind.

Before the first iteration and after the last, an explanation consists of about a thousand small
operations, which a GPU executes faster than Python launches them. Freezing at x, the initial masks
and the read-out are therefore recorded as CUDA graphs (an engine records its own iterations). For
another question, its pixels and target weights are copied in and the graphs are replayed.

A recording refers to the model's own parameters, so changing them in place is harmless. Every
replay is compared with the model's output; the model runs on a second stream while masks are
learned.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from dmbp.decompose.decomposition import Decomposition
from dmbp.decompose.learn import check_finite, collect, make_engine
from dmbp.decompose.settings import Settings
from dmbp.engine import Engine, OnIteration, Readout, Terms, plan_for
from dmbp.errors import InexactCapture
from dmbp.linear import LinearNetwork, Question
from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.freeze.exactness import check_exactness

Result = TypeVar("Result")


class Recording:
    """Serves questions with as many rows, and images of the same shape, as the first `question`.

    The settings that learning depends on have to be the same, too.
    """

    def __init__(self, question: Question, captured: CapturedGraph, settings: Settings) -> None:
        self._captured = captured
        self._inputs = question.inputs.clone()
        self._model_stream = torch.cuda.Stream()
        # The model runs on its own stream from the start, because libraries allocate memory when a
        # stream is first used.
        outputs = self._outputs_on_model_stream(question, _record_event())
        weights, constant = question.rows.tangent(outputs)
        self._tangent = (weights.clone(), constant.clone())
        self._pool = torch.cuda.graph_pool_handle()
        linearizer, rows = question.linearizer, question.rows

        def begin() -> tuple[LinearNetwork, Engine]:
            frozen = linearizer.freeze_unchecked(captured, self._inputs)
            net = LinearNetwork(frozen, self._inputs, rows, tangent=self._tangent)
            return net, make_engine(plan_for(net), settings)

        self._begin, (self._net, self._engine) = self._record(begin)
        self._end: torch.cuda.CUDAGraph | None = None
        self._recorded_readout: Readout | None = None

    def decompose(
        self, question: Question, settings: Settings, *, on_iteration: OnIteration = None
    ) -> Decomposition:
        """Return the decomposition of another question of the same kind.

        Raises:
            InexactCapture: If the model has changed since it was recorded.
        """
        inputs, rows = question.inputs, question.rows
        weights = self._tangent[0]
        if weights.shape[1] != rows.classes:
            raise InexactCapture("the model's classes have changed since it was recorded")
        asked = _record_event()
        self._inputs.copy_(inputs)
        at = torch.zeros_like(weights) if rows.is_linear else question.outputs
        for kept, part in zip(self._tangent, rows.tangent(at), strict=True):
            kept.copy_(part)
        self._begin.replay()
        past = self._engine.learn(settings.iterations, on_iteration)
        readout = self._readout()
        outputs = self._outputs_on_model_stream(question, asked)
        net = LinearNetwork(self._net.frozen, inputs, rows, tangent=self._tangent)
        found = collect(net, settings, past, readout)
        exactness = check_exactness(self._captured, self._net.frozen, inputs, outputs)
        return replace(check_finite(found, self._engine, past), exactness=exactness)

    def _outputs_on_model_stream(self, question: Question, asked: torch.cuda.Event) -> Tensor:
        """Return the model's outputs, computed beside the iterations, after the event `asked`."""
        self._model_stream.wait_event(asked)
        with torch.cuda.stream(self._model_stream):
            outputs = question.outputs
        torch.cuda.current_stream().wait_stream(self._model_stream)
        outputs.record_stream(torch.cuda.current_stream())
        return outputs

    def _readout(self) -> Readout:
        """Return copies of the read-out, since the next question overwrites it."""
        if self._end is None:
            self._end, self._recorded_readout = self._record(self._engine.readout)
        self._end.replay()
        assert self._recorded_readout is not None
        terms = self._recorded_readout.terms
        return Readout(
            Terms(terms.output.clone(), terms.positive.clone(), terms.negative.clone()),
            self._recorded_readout.positive_map.clone(),
            self._recorded_readout.negative_map.clone(),
        )

    def _record(self, action: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = action()
        return graph, result


def _record_event() -> torch.cuda.Event:
    """Record an event after all work issued to the GPU so far."""
    event = torch.cuda.Event()
    event.record()
    return event
