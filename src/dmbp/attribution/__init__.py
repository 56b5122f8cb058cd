"""Attribution methods: one file each, one table of them all."""

from dmbp.attribution.dmbp import DMBP
from dmbp.attribution.method import LinearMapMethod, Method, Question
from dmbp.attribution.quantus import explain_func
from dmbp.attribution.table import METHODS, Row, method_names, methods

__all__ = [
    "DMBP",
    "METHODS",
    "LinearMapMethod",
    "Method",
    "Question",
    "Row",
    "explain_func",
    "method_names",
    "methods",
]
