"""ONNX's recurrent layers: LSTM, GRU and RNN, forward, backward and in both directions.

Sequences are (time, batch, features), or (batch, time, features) with `layout=1`. The layers are
PyTorch's own where PyTorch has them: it orders the gates differently, so weights are rearranged.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dmbp.errors import ModelError
from dmbp.models.onnx.operators.call import Implementation, NodeCall, as_numbers

GATES: Mapping[str, tuple[int, ...]] = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""The position of each of PyTorch's gates among ONNX's: i f g o of i o f c, and r z n of z r h."""

ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
    "RNN": ("tanh",),
}
"""The activations of each layer; others than these are refused, but for RNN's Relu."""


RunLayer = Callable[[Tensor, list[Tensor], list[Tensor]], tuple[Tensor, ...]]
"""Runs one direction of a layer, given a sequence, its first states and its weights."""


def _recurrent(call: NodeCall) -> tuple[Tensor, ...]:
    """Run a layer, and return its outputs of all steps and its last states."""
    direction = call.attribute("direction", "forward")
    hidden = call.attribute("hidden_size")
    batch_first = bool(call.attribute("layout", 0))
    sequence = call.tensor(0).transpose(0, 1) if batch_first else call.tensor(0)
    _check_lengths(call, sequence)
    nonlinearity = _check_activations(call, directions=2 if direction == "bidirectional" else 1)
    weights = [_weights(call, k) for k in range(len(call.tensor(1)))]
    states = _initial_states(call, len(weights), sequence, hidden, batch_first=batch_first)
    layers: dict[str, RunLayer] = {
        "LSTM": lambda x, h, w: torch.lstm(x, h, w, True, 1, 0.0, False, False, False),
        "GRU": _gru(linear_before_reset=bool(call.attribute("linear_before_reset", 0))),
        "RNN": lambda x, h, w: getattr(torch, f"rnn_{nonlinearity}")(
            x, h[0], w, True, 1, 0.0, False, False, False
        ),
    }
    run = layers[call.operator]
    outputs: list[Tensor] = []
    last: list[Sequence[Tensor]] = []
    for k, own in enumerate(weights):
        is_backward = direction == "reverse" or k == 1
        steps = sequence.flip(0) if is_backward else sequence
        found, *ends = run(steps, [state[k : k + 1] for state in states], own)
        outputs.append(found.flip(0) if is_backward else found)
        last.append(ends)
    all_steps = torch.stack(outputs, 1)  # (time, directions, batch, hidden)
    ends = tuple(torch.cat(parts) for parts in zip(*last, strict=True))
    if batch_first:
        return all_steps.permute(2, 0, 1, 3), *(end.transpose(0, 1) for end in ends)
    return all_steps, *ends


def _weights(call: NodeCall, direction: int) -> list[Tensor]:
    """Return one direction's weights and biases, in PyTorch's order of gates."""
    order = GATES[call.operator]
    parts = [call.tensor(1)[direction], call.tensor(2)[direction]]
    hidden = parts[1].shape[-1]
    bias = call.optional_tensor(3)
    both = parts[0].new_zeros(2 * len(order) * hidden) if bias is None else bias[direction]
    parts += both.chunk(2)
    return [torch.cat([part.chunk(len(order))[gate] for gate in order]) for part in parts]


def _initial_states(
    call: NodeCall, directions: int, sequence: Tensor, hidden: int, *, batch_first: bool
) -> list[Tensor]:
    """Return the states before the first step, zero unless they are given."""
    count = 2 if call.operator == "LSTM" else 1
    zeros = sequence.new_zeros(directions, sequence.shape[1], hidden)
    given = [call.optional_tensor(position) for position in (5, 6)[:count]]
    return [
        zeros if state is None else state.transpose(0, 1) if batch_first else state
        for state in given
    ]


def _gru(*, linear_before_reset: bool) -> RunLayer:
    """Return a GRU. PyTorch resets after the linear part; ONNX's default resets before it."""

    def before(x: Tensor, states: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, Tensor]:
        w, r, w_bias, r_bias = weights
        h = states[0][0]
        reset_update, candidate = r[: -len(r) // 3], r[-len(r) // 3 :]
        results: list[Tensor] = []
        for step in x.unbind(0):
            gates_x = torch.nn.functional.linear(step, w, w_bias + r_bias)
            reset_x, update_x, new_x = gates_x.chunk(3, -1)
            reset_h, update_h = torch.nn.functional.linear(h, reset_update).chunk(2, -1)
            reset, update = torch.sigmoid(reset_x + reset_h), torch.sigmoid(update_x + update_h)
            new = torch.tanh(new_x + torch.nn.functional.linear(reset * h, candidate))
            h = (1 - update) * new + update * h
            results.append(h)
        return torch.stack(results), h[None]

    def after(x: Tensor, states: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, ...]:
        return torch.gru(x, states[0], weights, True, 1, 0.0, False, False, False)

    return after if linear_before_reset else before


def _check_activations(call: NodeCall, *, directions: int) -> str:
    """Return an RNN's activation, after a check that all activations are supported."""
    expected = ACTIVATIONS[call.operator] * directions
    found = tuple(name.lower() for name in call.attribute("activations", ()) or expected)
    if call.has_input(7):
        raise ModelError(f"{call.operator} with peepholes is not supported in ONNX files")
    is_relu = call.operator == "RNN" and set(found) == {"relu"}
    if found != expected and not is_relu:
        names = ", ".join(found)
        raise ModelError(f"{call.operator} with activations {names} is not supported in ONNX files")
    return "relu" if is_relu else "tanh"


def _check_lengths(call: NodeCall, sequence: Tensor) -> None:
    """Check that all sequences are as long as the tensor that holds them."""
    if not call.has_input(4):
        return
    lengths = as_numbers(call.inputs[4])
    if not isinstance(lengths, list) or any(length != len(sequence) for length in lengths):
        raise ModelError(
            f"{call.operator} with sequences of different lengths is not supported in ONNX files"
        )


RECURRENT: Mapping[str, Implementation] = dict.fromkeys(GATES, _recurrent)
