"""The paper's own figures (Ruiz, Agudo and Moreno-Noguer, ICCV 2021), to stand beside ours.

Tables 1 (ablation) and 2 (state of the art), by task, metric and what they call each method. The
ablation's ImageNet figures are over 5 photos a class, the other table's over all; DMBP there is
DMBP^All here.
"""

from collections.abc import Mapping

_METHODS = ["Grad", "IG", "SG", "BIG", "DL", "GBp", "GGC", "LPR", "RISE", "FG", "GC", "DMBP^All"]

_COMPARED = {
    ("VOC/VGG", "IM"): ".36 .43 .55 .36 .41 .32 .35 .40 .41 .28 .35 .57",
    ("VOC/VGG", "cIM"): ".09 .06 .06 .08 .07 .06 .12 .07 .13 .10 .13 .16",
    ("VOC/RN50", "IM"): ".30 .36 .47 .27 .34 .39 .50 .40 .51 .44 .51 .61",
    ("VOC/RN50", "cIM"): ".15 .16 .15 .15 .15 .13 .19 .14 .21 .14 .21 .22",
    ("INet/VGG", "IM"): ".23 .28 .38 .21 .30 .32 .36 .28 .28 .43 .48 .41",
    ("INet/RN50", "IM"): ".26 .30 .40 .27 .29 .43 .50 .33 .33 .53 .55 .56",
}

_ABLATED = {  # DMBP⁺ and DMBP⁺⁻
    ("VOC/VGG", "IM"): ".62 .51",
    ("VOC/VGG", "cIM"): ".06 .18",
    ("VOC/RN50", "IM"): ".58 .59",
    ("VOC/RN50", "cIM"): ".15 .22",
    ("INet/VGG", "IM"): ".37 .37",
    ("INet/RN50", "IM"): ".50 .51",
}


def paper_scores() -> Mapping[tuple[str, str, str], float]:
    """By task, metric and the paper's name of a method."""
    found: dict[tuple[str, str, str], float] = {}
    for table, names in ((_COMPARED, _METHODS), (_ABLATED, ["DMBP⁺", "DMBP⁺⁻"])):
        for (task, metric), text in table.items():
            for name, score in zip(names, text.split(), strict=True):
                found[task, metric, name] = float(score)
    return found
