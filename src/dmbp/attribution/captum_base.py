"""Captum's base class of attribution methods, without the import of everything else in Captum.

`import captum` imports its language models, concepts and pictures, which takes half a second. Here
the packages that lead to `Attribution` are set up without running their `__init__`; it runs once
somebody reads anything else from them, in the same module objects:

    >>> import captum
    >>> captum.attr.IntegratedGradients.__name__          # imports all of captum.attr, now
    'IntegratedGradients'
"""

import importlib
import sys
import warnings
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any

PACKAGES = "captum", "captum.attr", "captum.attr._utils"

HOME = "captum.attr._utils.attribution"

_LOCK = RLock()


class WaitingPackage(ModuleType):
    """A package whose `__init__` runs on the first use of a name that it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        with _LOCK:
            if type(self) is WaitingPackage:
                spec = self.__spec__
                assert spec is not None
                assert spec.loader is not None
                _set_class(self, ModuleType)
                try:
                    with warnings.catch_warnings():
                        # In a notebook without ipywidgets, Captum warns about progress bars.
                        warnings.filterwarnings("ignore", "IProgress not found")
                        spec.loader.exec_module(self)
                except BaseException:
                    _set_class(self, WaitingPackage)
                    raise
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        """Return the names after the import."""
        _ = self.__doc__, getattr(self, "__all__", None)
        return sorted(vars(self))


def _set_class(package: ModuleType, kind: type[ModuleType]) -> None:
    package.__class__ = kind


def _import_attribution() -> Any:
    if "captum" not in sys.modules:
        for name in PACKAGES:
            spec = find_spec(name)
            if spec is None or spec.submodule_search_locations is None:
                break
            _set_up(spec)
    try:
        return importlib.import_module(HOME).Attribution
    except (ImportError, AttributeError):  # another release keeps it elsewhere
        return importlib.import_module("captum.attr").Attribution


def _set_up(spec: ModuleSpec) -> None:
    package = module_from_spec(spec)
    _set_class(package, WaitingPackage)
    sys.modules[spec.name] = package
    parent, _, name = spec.name.rpartition(".")
    if parent:
        vars(sys.modules[parent])[name] = package


if TYPE_CHECKING:
    from captum.attr import Attribution as Attribution
else:
    Attribution = _import_attribution()
