"""An independent prototype of DMBP, kept beside the repository, and its terms next to ours."""

import importlib.util
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

import dmbp
from dmbp.models.classifier import Classifier


def prototype(shared: Path) -> ModuleType:
    """Import the prototype from its file."""
    spec = importlib.util.spec_from_file_location("prototype", shared / "lab" / "dmbp_lab.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(
    classifier: Classifier, inputs: Tensor, target: Tensor, lab: ModuleType, iterations: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the terms found here and by the prototype, by the paper's symbols."""
    d = dmbp.DMBP(classifier.module, preset="paper", iterations=iterations).explain(
        inputs, target=target, internal_batch_size=1
    )
    ours = {"y": d.output, "y+": d.positive_output, "y-": d.negative_output}
    parts = [
        lab.dmbp(classifier.module, inputs[k : k + 1], target[k : k + 1], iters=iterations)
        for k in range(len(inputs))
    ]
    names = {"y": "y", "y+": "yp", "y-": "yn"}
    theirs = {name: torch.cat([part[key] for part in parts]) for name, key in names.items()}
    for terms in (ours, theirs):
        terms["y~"] = terms["y"] - terms["y+"] - terms["y-"]
    return ours, theirs
