"""Attribution methods, a file for each or for each family, and their table, `registry.py`.

To write a method, derive it from `Method`, or from `LinearMapMethod` if it finds a linear map m and
attributes m ⊙ (x − reference), and add a row to the table.
"""

from dmbp.attribution.base import LinearMapMethod, Method, Question
from dmbp.attribution.dmbp import DMBP
from dmbp.attribution.registry import (
    COMPARED,
    METHODS,
    MethodSpec,
    explain_func,
    methods,
    parse_method_names,
)

__all__ = [
    "COMPARED",
    "DMBP",
    "METHODS",
    "LinearMapMethod",
    "Method",
    "MethodSpec",
    "Question",
    "explain_func",
    "methods",
    "parse_method_names",
]
