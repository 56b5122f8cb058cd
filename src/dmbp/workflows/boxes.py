"""`dmbp boxes`: list what a detector finds in a photo, so that one can ask about a box by number.

Corners are in pixels of the photo, not of what the model sees of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.table import Table

from dmbp.models import Classifier
from dmbp.render import DrawnBox, PanelStyle, draw_boxes, encode_figure, write_all_or_none
from dmbp.targets import FoundBox, boxes_in
from dmbp.workflows.prediction import Prediction, encode_record, run_on_photo


@dataclass(frozen=True)
class BoxList:
    """The boxes that a detector finds in a photo, the strongest first."""

    prediction: Prediction
    found: Sequence[FoundBox]

    def show(self, console: Console) -> None:
        """Print a table of the boxes."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for heading in ("box", "class", "probability", "left", "top", "right", "bottom"):
            table.add_column(heading, justify="left" if heading == "class" else "right")
        for number, box in enumerate(self.found):
            corners = [f"{side:.0f}" for side in self.corners(box)]
            table.add_row(str(number), self._name(box), f"{box.probability:.1%}", *corners)
        console.print(table)

    def corners(self, box: FoundBox) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of a box in the photo's pixels."""
        frame = self.prediction.frame
        return (*frame.to_photo(box.corners[:2]), *frame.to_photo(box.corners[2:]))

    def write(
        self, folder: Path, stem: str, style: PanelStyle | None = None, *, suffix: str = ".png"
    ) -> list[Path]:
        """Write a picture of the photo with its boxes and a JSON file, and return their paths."""
        drawn = [
            DrawnBox(f"{number}: {self._name(box)} {box.probability:.0%}", self.corners(box))
            for number, box in enumerate(self.found)
        ]
        figure = draw_boxes(self.prediction.original, self.prediction.verdict(), drawn, style)
        files = {
            folder / f"{stem}-boxes{suffix}": encode_figure(figure, suffix),
            folder / f"{stem}-boxes.json": encode_record(self.record()),
        }
        write_all_or_none(files)
        return list(files)

    def record(self) -> dict[str, Any]:
        """Return the boxes as plain values."""
        return {
            "photo": self.prediction.name,
            "model": self.prediction.classifier.name,
            "boxes": [
                {
                    "box": number,
                    "class": box.index,
                    "name": self._name(box),
                    "probability": box.probability,
                    "corners": [round(side, 2) for side in self.corners(box)],
                }
                for number, box in enumerate(self.found)
            ],
        }

    def _name(self, box: FoundBox) -> str:
        return self.prediction.context.class_name(box.index)


def list_boxes(photo: Image.Image, name: str, classifier: Classifier) -> BoxList:
    """Run a detector on a photo, and list the boxes that it finds.

    Raises:
        TargetError: If the model is no detector.
    """
    prediction = run_on_photo(photo, name, classifier)
    return BoxList(prediction, boxes_in(prediction.context))
