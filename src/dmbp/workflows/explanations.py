"""`Explanations`: those of several inputs, which show themselves and make one report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from dmbp.errors import InputError
from dmbp.render import PanelStyle, ReportWriter
from dmbp.workflows.explanation import Explanation, report_heading
from dmbp.workflows.prediction import InputPrediction


class Explanations(Sequence[Explanation[InputPrediction]]):
    """The explanations of several inputs, in the order in which these were given.

    It is a sequence, shows itself in a notebook, and `report` makes one page of all.

    Args:
        explanations: The explanations.
    """

    def __init__(self, explanations: Sequence[Explanation[InputPrediction]]) -> None:
        self._explanations = list(explanations)

    @overload
    def __getitem__(self, index: int) -> Explanation[InputPrediction]: ...
    @overload
    def __getitem__(self, index: slice) -> Explanations: ...
    def __getitem__(self, index: int | slice) -> Explanation[InputPrediction] | Explanations:
        """Return one explanation, or some of them."""
        if isinstance(index, slice):
            return Explanations(self._explanations[index])
        return self._explanations[index]

    def __len__(self) -> int:
        return len(self._explanations)

    def __iter__(self) -> Iterator[Explanation[InputPrediction]]:
        return iter(self._explanations)

    def __eq__(self, other: object) -> bool:
        """Return whether all explanations are equal."""
        if not isinstance(other, Explanations):
            return NotImplemented
        return self._explanations == other._explanations

    def __repr__(self) -> str:
        lines = [f"  {explanation!r}," for explanation in self]
        return "\n".join(["Explanations([", *lines, "])"])

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return what each explanation's `to_dict` returns."""
        return [explanation.to_dict() for explanation in self]

    def report(self, folder: str | Path, *, style: PanelStyle | None = None) -> Path:
        """Write a report about all inputs, as `dmbp explain --report` does.

        Args:
            folder: Where `report.html` is written, and further pages if there are many inputs.
            style: How the pictures look.

        Returns:
            The path of the first page.

        Raises:
            InputError: If `folder` is the name of a page.
            OutputError: If a file cannot be written.
        """
        if Path(folder).suffix == ".html":
            raise InputError(
                f"a report about several inputs is a folder: give {Path(folder).with_suffix('')}"
            )
        first = self[0]
        heading = report_heading(first.prediction.classifier, first.settings)
        with ReportWriter(Path(folder), heading, style=style) as report:
            for explanation in self:
                report.add(explanation.report_photo())
        return report.first_page

    def _repr_html_(self) -> str:
        return "".join(explanation._repr_html_() for explanation in self)
