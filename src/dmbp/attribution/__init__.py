"""Attribution methods: one file each, one table of them all."""

from dmbp.attribution.base import LinearMapMethod, Method, Question
from dmbp.attribution.dmbp import DMBP
from dmbp.attribution.registry import METHODS, MethodSpec, explain_func, methods, parse_method_names

__all__ = [
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
