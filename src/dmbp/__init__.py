"""dmbp explains what an image classifier saw: which pixels speak for a class, and which against it.

    >>> explainer = dmbp.DMBP(model)                       # any nn.Module
    >>> maps = explainer.attribute(images, target=3)       # positive pixels speak for class 3
    >>> maps.shape == images.shape
    True
    >>> d = explainer.explain(images, target=3)            # everything: terms, maps, history
    >>> figure = d.plot("class3.png")
    >>> e = dmbp.explain(images, model, target=3)          # the same, and it shows itself
    >>> e.targets
    ['class 3']

Public names:

    explain()           explains a photo in any form with a model in any form; the result shows
                        itself in a notebook, in a window and in files
    compare()           several methods side by side on one photo, with their scores
    sanity()            whether maps change when the model's last layer is random
    doctor()            whether a model can be explained, how exactly, at what cost
    explain_dataset()   explains a Dataset or DataLoader item by item; a run may be continued
    frame()             explanations as a data frame of pandas or Polars
    bench               benchmarks; bench.read() returns their results as data frames
    DMBP                the method, a Captum `Attribution`: attribute() returns maps, and explain()
                        a Decomposition
    load()              reads a Decomposition that was saved to a file
    Settings            how a decomposition is learned: iterations, learning rate, reference …
    targets             what to ask: Class, Margin, Region, Box, Step, Value, Similarity
    rather_than()       a target that asks why the model sees one class rather than others
    methods()           every attribution method by name, with the same interface as DMBP
    explain_func()      one of these methods as a function for Quantus
    metrics             insertion, deletion, the pointing game, the re-initialisation check
    models              classifiers by name, from files and from your own modules
    render              pictures of any method's maps: show() and grid()
    web                 the page of `dmbp serve`
    integrations        maps of fixed images while a model is trained
    linearize()         a model frozen at its inputs, as a LinearNetwork
    Pieces              an option of linearize() and DMBP: smooth activations as k straight lines
    DMBPError           base class of every error raised on purpose; dmbp.errors has the others

The code, lowest layer first; each folder imports only from those listed before it:

    linear              captures a model and freezes it at an input: start at linear/network.py
    targets             questions besides "which class": regions, boxes, steps, similarities
    engine              runs masked linear networks forwards and backwards, on CPUs and GPUs
    decompose           learns the masks and reads out the terms
    attribution         DMBP and the other methods, one file each
    metrics             scores of attribution maps
    models, data        classifiers, photographs and data sets
    render              pictures and reports
    workflows           what the commands do; `bench` runs many methods on many photographs
    integrations        maps while a model is trained, with Lightning or a Trainer of Hugging Face
    cli                 the command `dmbp`

An implementation of "Generating Attribution Maps with Disentangled Masked Backpropagation"
(Ruiz, Agudo and Moreno-Noguer, ICCV 2021).
"""

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmbp import bench, metrics, models, render, targets
    from dmbp.attribution import DMBP, explain_func, methods
    from dmbp.decompose import Decomposition, Settings, load
    from dmbp.errors import DMBPError
    from dmbp.linear import LinearNetwork, Pieces, linearize, rather_than
    from dmbp.workflows.api import compare, doctor, explain, sanity
    from dmbp.workflows.datasets import explain_dataset
    from dmbp.workflows.frames import frame

__version__ = "0.2.0"

__all__ = [
    "DMBP",
    "DMBPError",
    "Decomposition",
    "LinearNetwork",
    "Pieces",
    "Settings",
    "__version__",
    "bench",
    "compare",
    "doctor",
    "explain",
    "explain_dataset",
    "explain_func",
    "frame",
    "linearize",
    "load",
    "methods",
    "metrics",
    "models",
    "rather_than",
    "render",
    "sanity",
    "targets",
]

# Names are imported on first use: the core needs only torch, the methods need captum, and a command
# that merely lists names needs neither.
_HOMES = {
    "DMBP": "dmbp.attribution",
    "DMBPError": "dmbp.errors",
    "Decomposition": "dmbp.decompose",
    "LinearNetwork": "dmbp.linear",
    "Pieces": "dmbp.linear",
    "Settings": "dmbp.decompose",
    "compare": "dmbp.workflows.api",
    "doctor": "dmbp.workflows.api",
    "explain": "dmbp.workflows.api",
    "explain_dataset": "dmbp.workflows.datasets",
    "explain_func": "dmbp.attribution",
    "frame": "dmbp.workflows.frames",
    "linearize": "dmbp.linear",
    "load": "dmbp.decompose",
    "methods": "dmbp.attribution",
    "rather_than": "dmbp.linear",
    "sanity": "dmbp.workflows.api",
}


_MODULES = "bench", "errors", "integrations", "linear", "metrics", "models", "render", "targets"


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"dmbp.{name}")
    near = get_close_matches(name, __all__, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise AttributeError(f"module 'dmbp' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
