"""The paper's figures, to be printed with ours.

Ruiz, Agudo and Moreno-Noguer, "Generating Attribution Maps with Disentangled Masked
Backpropagation", ICCV 2021: Table 1 (ablation), Table 2 (state of the art, here "comparison") and
Table 3 (re-initialisation). Tasks and methods have the paper's names; its DMBP is called `DMBP^All`
in every table, as in the ablation. The ablation's ImageNet figures are over 5 photos per class and
those of the other tables over all photos, so the two differ. "none" is for plans that are not the
paper's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

PaperScores = Mapping[tuple[str, str, str], float]
"""Figures by task, metric and method."""

AVERAGE = "Avg"
"""The paper's name for the mean over the lines of its Table 2."""


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: its methods, and a line of figures for each task and metric.

    By default it is printed with a column for each method; `tasks_across` makes that a column for
    each task and a line for each method. `average` adds the mean over all IM and cIM lines.
    """

    methods: tuple[str, ...]
    lines: Mapping[tuple[str, str], str]
    tasks_across: bool = False
    average: bool = False

    def scores(self) -> PaperScores:
        """Return the figures by task, metric and method."""
        return {
            (task, metric, method): float(figure)
            for (task, metric), figures in self.lines.items()
            for method, figure in zip(self.methods, figures.split(), strict=True)
        }


TABLES: Mapping[str, PaperTable] = {
    "comparison": PaperTable(
        (
            *("Grad", "IG", "SG", "BIG", "DL", "GBp", "GGC"),
            *("LPR", "RISE", "FG", "GC", "DMBP^All"),
        ),
        {
            ("VOC/VGG", "IM"): ".36 .43 .55 .36 .41 .32 .35 .40 .41 .28 .35 .57",
            ("VOC/VGG", "cIM"): ".09 .06 .06 .08 .07 .06 .12 .07 .13 .10 .13 .16",
            ("VOC/RN50", "IM"): ".30 .36 .47 .27 .34 .39 .50 .40 .51 .44 .51 .61",
            ("VOC/RN50", "cIM"): ".15 .16 .15 .15 .15 .13 .19 .14 .21 .14 .21 .22",
            ("INet/VGG", "IM"): ".23 .28 .38 .21 .30 .32 .36 .28 .28 .43 .48 .41",
            ("INet/RN50", "IM"): ".26 .30 .40 .27 .29 .43 .50 .33 .33 .53 .55 .56",
            (AVERAGE, ""): ".23 .27 .34 .22 .26 .28 .34 .27 .31 .32 .37 .42",
        },
        average=True,
    ),
    "ablation": PaperTable(
        ("ND", "DMBP⁺", "DMBP⁺⁻", "DMBP^All"),
        {
            ("VOC/VGG", "IM"): ".36 .62 .51 .57",
            ("VOC/VGG", "cIM"): ".09 .06 .18 .16",
            ("VOC/RN50", "IM"): ".30 .58 .59 .61",
            ("VOC/RN50", "cIM"): ".15 .15 .22 .22",
            ("INet/VGG", "IM"): ".24 .37 .37 .39",
            ("INet/RN50", "IM"): ".26 .50 .51 .57",
        },
    ),
    "reinitialisation": PaperTable(
        ("GBp", "GGC", "DMBP^All"),
        {
            ("VOC/VGG", "reinitialisation"): "0.99 0.25 0.02",
            ("VOC/RN50", "reinitialisation"): "0.99 0.28 -0.03",
            ("INet/VGG", "reinitialisation"): "0.99 0.35 0.00",
            ("INet/RN50", "reinitialisation"): "0.99 0.45 0.00",
        },
        tasks_across=True,
    ),
    "none": PaperTable((), {}),
}
