"""Stages: layers whose activations can be laid out as a map of the image, and the last of them.

The last stage is the layer that GradCAM takes if none is named. It is the last one that every path
to the output passes through, before the pooling that ends the network. Its activations may be a map
already, as those of `layer4` in a ResNet are, or tokens. A `Grid` lays tokens out by the points of
the image that they stand for (`dmbp.linear.positions`), whether they are in a sequence, in windows
or with channels last, and leaves out class, distillation and register tokens.

If the score is read from a class token, patches have no gradient after the last attention. The last
stage is then the last one whose patches do: the output of the last block but one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dmbp.attribution.base import Layer
from dmbp.decompose.mixtures import INTERPOLATION
from dmbp.errors import InputError, suggestion
from dmbp.linear.network import LinearNetwork
from dmbp.linear.positions import DIGITS, REARRANGEMENTS, Positions
from dmbp.linear.steps import LinearStep


@dataclass(frozen=True)
class Grid:
    """How an activation is laid out as a map.

    Dimension `row_dim` holds the rows, and inside each row its windows, if there are any.
    `place_dims` hold places, and all other dimensions hold channels. `index` lists the places of
    the map in the order of the image, and `others` is the number of places that are left out.
    """

    row_dim: int
    place_dims: tuple[int, ...]
    index: Tensor
    others: int
    size: tuple[int, ...]

    def lay_out(self, activation: Tensor, rows: int) -> Tensor:
        """Return the activation as a map (rows, channel, *size)."""
        # The dimension of the rows becomes two: the rows, which move to the front, and the windows.
        split = activation.unflatten(self.row_dim, (rows, -1)).movedim(self.row_dim, 0)
        places = [dim + 1 for dim in self.place_dims]
        channels = [dim for dim in range(1, split.dim()) if dim not in places]
        count = prod(split.shape[dim] for dim in places)
        sequence = split.permute(0, *channels, *places).reshape(rows, -1, count)
        return sequence[..., self.index].unflatten(-1, self.size)


def grid_of(positions: Positions, shape: Sequence[int], rows: int) -> Grid | None:
    """Return how an activation is laid out, or None if it is not a map.

    Args:
        positions: The points of its elements for a single row.
        shape: Its shape for all rows.
        rows: How many rows there are.
    """
    row_dim = _row_dim(positions.shape, shape, rows)
    place_dims = tuple(dim for dim, size in enumerate(positions.known.shape) if size > 1)
    if row_dim is None or len({row_dim, *place_dims}) == len(shape):
        return None  # no dimension is left for channels
    places = positions.known.flatten().nonzero().flatten()
    cells = torch.zeros_like(places)
    sizes: list[int] = []
    for part in positions.axes:
        along, line = part.flatten()[places].round(decimals=DIGITS).unique(return_inverse=True)
        cells = cells * len(along) + line
        sizes.append(len(along))
    order = cells.argsort()
    every_cell = torch.arange(prod(sizes), device=cells.device)
    if len(every_cell) < 2 or not torch.equal(cells[order], every_cell):
        return None  # some point has several places, or none
    others = positions.known.numel() - len(places)
    return Grid(row_dim, place_dims, places[order], others, tuple(sizes))


def _row_dim(single: Sequence[int], shape: Sequence[int], rows: int) -> int | None:
    """Return the dimension that grows with the number of rows, given the shape for one row."""
    if rows == 1 and tuple(single) == tuple(shape):
        return 0
    grown = [dim for dim, size in enumerate(single) if tuple(shape)[dim : dim + 1] != (size,)]
    is_row_dim = len(grown) == 1 and shape[grown[0]] == rows * single[grown[0]]
    return grown[0] if is_row_dim and len(single) == len(shape) else None


@dataclass(frozen=True)
class Stage:
    """A layer at a batch of rows: its activations and the score's gradient, laid out as maps."""

    layer: Layer
    activation: Tensor
    gradient: Tensor

    @property
    def is_read(self) -> bool:
        """Whether the score's gradient with respect to the map is not zero everywhere."""
        return bool(self.gradient.any())


def resized(maps: Tensor, size: Sequence[int], *, align_corners: bool | None = None) -> Tensor:
    """Return maps (rows, channel, …) interpolated linearly to another size."""
    mode = INTERPOLATION[len(size)]
    return functional.interpolate(maps, list(size), mode=mode, align_corners=align_corners)


def require_places(name: str, inputs: Tensor) -> None:
    """Raise an `InputError` unless inputs are signals, images or volumes."""
    if inputs.dim() - 2 not in INTERPOLATION:
        raise InputError(
            f"{name} needs images of shape (batch, channel, height, width), signals or volumes, "
            f"not {tuple(inputs.shape)}"
        )


class Stages:
    """The layers of a linear network that can be laid out as a map.

    Args:
        net: The network.
        positions: Positions of its activations, by the names of its steps.
    """

    def __init__(self, net: LinearNetwork, positions: Mapping[str, Positions]) -> None:
        self.net = net
        self._positions = positions
        self._steps = net.frozen.steps
        self._last_of = _last_steps(self._steps)

    def named(self, name: str) -> Stage:
        """Return the layer of this name, as `all_named` does."""
        return self.all_named([name])[0]

    def all_named(self, names: Sequence[str]) -> list[Stage]:
        """Return the layers of these names: those of modules, or of operations in the graph.

        Raises:
            InputError: If there is no such layer, it cannot be laid out, or it runs several times
                and its last output is not on every path.
        """
        found = [self._layer_named(name) for name in names]
        order = sorted({output for output, _ in found})
        measured = self._measure(dict(found))
        stages = {output: stage for output, (stage, _) in zip(order, measured, strict=True)}
        return [
            replace(stages[output], layer=replace(stages[output].layer, name=name))
            for (output, _), name in zip(found, names, strict=True)
        ]

    def _layer_named(self, name: str) -> tuple[int, Grid]:
        """Return the output of a layer, and how it is laid out."""
        step = self._step_named(name)
        grid = self.grid(step)
        if grid is None:
            raise InputError(
                f"the output of {name!r} has no height and width, so there are no regions to show; "
                f"name another layer{self._alternatives()}"
            )
        times = _count_runs(self._steps, name)
        if times > 1 and step.output not in _on_every_path(self._steps):
            raise InputError(
                f"{name!r} runs {times} times, and its last run does not see the whole image; name "
                "another layer, or use a method that attributes to pixels, such as "
                "integrated_gradients"
            )
        return step.output, grid

    def last(self) -> Stage:
        """Return the last stage.

        Raises:
            InputError: If no layer that can be laid out is on every path.
        """
        through = _on_every_path(self._steps)
        grids = {s.output: self.grid(s) for s in self._steps if s.output in through}
        stages = {output: grid for output, grid in grids.items() if grid is not None}
        if not stages:
            raise InputError(self._reason())
        stages = self._without_end(stages)
        output, grid = next(reversed(stages.items()))
        if not grid.others:
            return self._measure({output: grid})[0][0]
        measured = self._measure(stages)
        for stage, reads_others in reversed(measured):
            # With a gradient of zero everywhere, no earlier layer would be different.
            if stage.is_read or not reads_others:
                return stage
        return measured[-1][0]

    def grid(self, step: LinearStep) -> Grid | None:
        """Return how a step's output is laid out, or None if it is not a map."""
        positions = self._positions.get(step.name.removesuffix("_site"))
        if positions is None or step.shape is None:
            return None
        return grid_of(positions, step.shape, len(self.net.inputs))

    def _without_end(self, stages: Mapping[int, Grid]) -> dict[int, Grid]:
        """Return stages without the pooling and the rearrangements that end the network.

        Rearrangements after the last stage are kept if one of them is the output of an outer
        module, which has the better name: a block that puts its windows together again.
        """
        steps = [step for step in self._steps if step.output in stages]
        last = max((k for k, step in enumerate(steps) if not _is_passed_over(step)), default=0)
        end = last + 1
        while end < len(steps) and _is_rearrangement(steps[end]):
            end += 1
        best = min(range(last, end), key=lambda k: self._depth(steps[k]))
        return {step.output: stages[step.output] for step in steps[: best + 1]}

    def _depth(self, step: LinearStep) -> float:
        """Return how deep the module is whose output a step is; inf if there is none."""
        name = self._name(step)
        return inf if name == step.name else name.count(".")

    def _step_named(self, name: str) -> LinearStep:
        steps = {step.name: step for step in self._steps} | self._last_of
        if not name or name not in steps:
            raise InputError(f"the model has no layer {name!r}; {suggestion(name, sorted(steps))}")
        return steps[name]

    def _name(self, step: LinearStep) -> str:
        """Return the outermost module whose output a step is, or else the step's own name."""
        parts = step.module.split(".")
        modules = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        own = [name for name in modules if self._last_of.get(name) is step]
        return own[0] if own else step.name

    @torch.enable_grad()
    def _measure(self, grids: Mapping[int, Grid]) -> list[tuple[Stage, bool]]:
        """Return steps as stages, and whether anything left out of them has a gradient.

        Gradients are computed from the first step on, so that fewer activations are kept.
        """
        seen: dict[int, Tensor] = {}
        names: dict[int, str] = {}

        def at_step(step: LinearStep, results: list[Any]) -> list[Any]:
            if step.output not in grids:
                return results
            result = results[0] if seen else results[0].detach().requires_grad_()
            seen[step.output], names[step.output] = result, self._name(step)
            return [result]

        (score,) = self.net.propagate_steps([self.net.inputs], at_step)
        gradients = torch.autograd.grad(
            score.sum(), list(seen.values()), allow_unused=True, materialize_grads=True
        )
        rows = len(self.net.inputs)
        measured: list[tuple[Stage, bool]] = []
        for (output, activation), gradient in zip(seen.items(), gradients, strict=True):
            grid = grids[output]
            maps = [grid.lay_out(part, rows) for part in (activation.detach(), gradient)]
            layer = Layer(names[output], grid.size)
            measured.append((Stage(layer, *maps), bool(gradient.any())))
        return measured

    def _reason(self) -> str:
        """Return why there is no last stage."""
        if any(self.grid(step) is not None for step in self._steps):
            return (
                "no layer with a height and a width sees the whole image, because branches are "
                f"pooled separately; name one of them with layer={self._alternatives()}"
            )
        return (
            "the model has no layer with a height and a width, so there are no regions to show; "
            "use a method that attributes to pixels, such as integrated_gradients"
        )

    def _alternatives(self) -> str:
        """Return the last few modules that can be laid out, as the end of a sentence."""
        names = [name for name, step in self._last_of.items() if self.grid(step) is not None]
        return f", such as {', '.join(map(repr, names[-3:]))}" if names else ""


def _is_rearrangement(step: LinearStep) -> bool:
    return step.operation.removeprefix("aten.").partition(".")[0] in REARRANGEMENTS


def _is_passed_over(step: LinearStep) -> bool:
    return _is_rearrangement(step) or any(word in step.operation for word in _PASSED_OVER)


_PASSED_OVER = ("pool", "dropout", "alias", "detach")
"""Operations after the last stage whose outputs are not stages, besides rearrangements."""


def _last_steps(steps: Sequence[LinearStep]) -> dict[str, LinearStep]:
    """Return the last step of every module, in the order of these steps."""
    last: dict[str, LinearStep] = {}
    for step in steps:
        parts = step.module.split(".") if step.module else []
        last |= {".".join(parts[: depth + 1]): step for depth in range(len(parts))}
    return dict(sorted(last.items(), key=lambda item: item[1].output))


def _count_runs(steps: Sequence[LinearStep], name: str) -> int:
    """Return how often a module runs: the number of unbroken stretches of its steps."""
    flags = [f"{step.module}.".startswith(f"{name}.") for step in steps]
    return sum(now and not before for before, now in zip([False, *flags], flags, strict=False))


def _on_every_path(steps: Sequence[LinearStep]) -> set[int]:
    """Return the outputs that every path from the input to the result passes through.

    Steps are in order and each leads to the result, so these are the outputs that no edge skips.
    """
    last_reader = {index: step.output for step in steps for index in step.reads}
    on_every_path: set[int] = set()
    furthest = last_reader[0]
    for step in steps:
        if furthest <= step.output:
            on_every_path.add(step.output)
        furthest = max(furthest, last_reader.get(step.output, 0))
    return on_every_path
