"""A column of a table: a method with its settings, and what the table calls it.

    >>> variant("gradcam", {}).label
    'GC'
    >>> variant("dmbp_paper", {"objective": "pos"}, label="DMBP⁺").settings
    {'preset': 'paper', 'objective': 'pos'}

Two columns may be one method under different settings; their labels tell them apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from dmbp.attribution import METHODS
from dmbp.errors import InputError
from dmbp.method_settings import check_kind, setting_names
from dmbp.names import known


@dataclass(frozen=True)
class Variant:
    """A method, all settings of it that differ from its defaults, and its name in tables."""

    method: str
    settings: Mapping[str, Any]
    label: str


def variant(method: str, settings: Mapping[str, Any], *, label: str | None = None) -> Variant:
    """A variant of a method in the table; its label is the paper's name unless one is given."""
    known("method", method, METHODS)
    check_settings(method, settings)
    row = METHODS[method]
    whole = {**row.settings, **settings}
    try:
        row(nn.Identity(), **whole)  # which looks at the values
    except (TypeError, ValueError) as error:
        raise InputError(f"the settings of {method} are not right: {error}") from error
    return Variant(method, whole, label or row.short)


def check_settings(method: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a method does not take."""
    known("method", method, METHODS)
    for setting, value in settings.items():
        known(f"setting of {method}", setting, setting_names(method))
        check_kind(value, method, setting)
