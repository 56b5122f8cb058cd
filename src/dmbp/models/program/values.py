"""Checks of single values in a `.pt2` file: names, operations, symbolic sizes, guards and trees.

torch turns such values into running code. It evaluates symbolic sizes and guards as Python, looks
up operations by their dotted name (`torch.os.system` is one), imports the modules that a tree of
inputs names, and writes the names of nodes, weights and inputs into Python source that it executes.
Each check returns the value that torch may read, or raises `Refused`:

    symbolic_size("Add(Symbol('s0', integer=True), Integer(1))")     # returns this text
    symbolic_size("__import__('os').system('true')")                 # raises Refused

What torch does not write for networks is refused, also if it is harmless.
"""

import ast
import json
import keyword
import re
from collections.abc import Callable
from typing import Any

import torch

from dmbp.linear.rules.table import RULES

_LONGEST_TEXT = 100_000
_LONGEST_EXPRESSION = 20_000
_LARGEST_INTEGER = 2**63  # sizes are 64-bit integers
_LARGEST_EXPONENT = 64  # torch writes squares; a tower of powers would take all memory


class Refused(Exception):
    """A value that is not known to be data. `place` is its path in a file: `.graph.nodes[2]`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.place = ""

    def __str__(self) -> str:
        return f"{self.place.lstrip('.') or 'it'} {self.reason}"


def expect(kind: type, value: Any) -> Any:
    """Return a value of this very type; true is no integer."""
    if type(value) is not kind:
        raise Refused(f"is {quote(value)}, not of type {kind.__name__}")
    return value


def quote(value: Any) -> str:
    """Return a short form of a value for messages."""
    shown = " ".join(repr(value).split())
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def integer(value: Any) -> int:
    """Check an integer of 64 bits."""
    if abs(expect(int, value)) >= _LARGEST_INTEGER:
        raise Refused("is an integer of more than 64 bits")
    return value


def real(value: Any) -> Any:
    """Check a number; the schema writes infinities and NaN as text."""
    return value if type(value) is float or value in _SPECIAL_NUMBERS else integer(value)


_SPECIAL_NUMBERS = ("Infinity", "-Infinity", "NaN")


def boolean(value: Any) -> bool:
    """Check a truth value."""
    return expect(bool, value)


def text(value: Any) -> str:
    """Check a string that torch always quotes."""
    if len(expect(str, value)) > _LONGEST_TEXT:
        raise Refused(f"is a text of {len(value)} characters")
    return value


def printable(value: Any) -> str:
    """Check a string that messages repeat, in which control codes could take over the terminal."""
    if not text(value).isprintable():
        raise Refused(f"is {quote(value)}, which cannot be printed")
    return value


def name(value: Any) -> str:
    """Check a name that torch writes into Python source as a variable."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,999}", expect(str, value)):
        raise Refused(f"is {quote(value)}, which is not a name")
    if keyword.iskeyword(value) or value.startswith("__"):
        raise Refused(f"is {quote(value)}, a name that Python reserves")
    return value


def argument_name(value: Any) -> str:
    """Check an argument's name: empty if it is positional, and a keyword in `aten.uniform`."""
    return value if value in ("", "from") else name(value)


def module_path(value: Any) -> str:
    """Check a path such as `layer1.0.conv`, which torch writes into Python source in quotes."""
    for part in expect(str, value).split("."):
        if not re.fullmatch(r"[A-Za-z0-9_:/@+ -]{1,999}", part) or part.startswith("__"):
            raise Refused(f"is {quote(value)}, which is not a path of modules")
    return value


def release(value: Any) -> str:
    """Check the release of torch that wrote a file."""
    if not re.fullmatch(r"[A-Za-z0-9.+<=_-]{1,100}", expect(str, value)):
        raise Refused(f"is {quote(value)}, which is not a release")
    return value


# ---- operations

_PYTHON_OPERATIONS = re.compile(
    r"_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|truediv|mod|pow|and_|or_|lshift|"
    r"rshift|getitem)|torch\.sym_(not|int|float|ite|max|min|sqrt|sum)|math\.(trunc|ceil|floor)|"
    r"torch\.ops\.higher_order\.(wrap_with_set_grad_enabled|wrap_with_autocast)"
)
"""Arithmetic with sizes, and `torch.no_grad` and autocast around a part of the network."""

_PRIVATE_OPERATIONS = re.compile(
    "__and__|__or__|__xor__|_assert_(async|scalar)|_functional_assert_(async|scalar)|"
    "_cdist_forward|_chunk_cat|_conj|_convolution|_fft_(c2c|c2r|r2c)|_fused_rms_norm|"
    "_local_scalar_dense|_native_batch_norm_legit_functional|_reshape_alias|"
    "_scaled_dot_product_(attention_math|flash_attention|flash_attention_for_cpu|"
    "efficient_attention|cudnn_attention)|_trilinear|_unsafe_index|_upsample_lanczos2d_aa|"
    "_upsample_nearest_exact3d|_weight_norm|_weight_norm_interface"
)
"""Operations with an underscore that exporting may leave in a network. Those that dmbp explains
are accepted too."""

_UNSAFE_OPERATIONS = re.compile(
    "from_file|save|set|set_|set_data|data|record_stream|pin_memory|resize.*|"
    "(fbgemm|mkldnn|miopen|cudnn|quantized)_.*|.*(sparse|mkldnn|nested).*"
)
"""Public operations that open files, replace a tensor's memory, or trust pointers in tensors."""


def operation(value: Any) -> str:
    """Check the name of an operation: one of PyTorch's own that only computes."""
    if not _PYTHON_OPERATIONS.fullmatch(expect(str, value)):
        aten = re.fullmatch(r"torch\.ops\.aten\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)", value)
        if aten is None or not _only_computes(*aten.groups()):
            raise Refused(
                f"names the operation {quote(value)}, which dmbp does not run from a file"
            )
    return value


def _only_computes(packet: str, overload: str) -> bool:
    """Return whether an operation exists and does no more than to compute tensors."""
    is_known = f"aten.{packet}.{overload}" in RULES or _PRIVATE_OPERATIONS.fullmatch(packet)
    if packet.startswith("_") and not is_known:
        return False
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    return (
        isinstance(found, torch._ops.OpOverload)
        and not _UNSAFE_OPERATIONS.fullmatch(packet)
        # Functions of TorchScript, such as aten::save, are no operations of the dispatcher.
        and torch._C._dispatch_has_kernel(found.name())
    )


# ---- symbolic sizes and guards

_FUNCTIONS = re.compile(
    "Abs|Add|And|CeilDiv|CeilToInt|CleanDiv|Eq|Equality|FloatPow|FloatTrueDiv|FloorDiv|FloorToInt|"
    "Ge|GreaterThan|Gt|Identity|IntTrueDiv|Integer|IsNonOverlappingAndDenseIndicator|LShift|Le|"
    "LessThan|Lt|Max|Min|Mod|ModularIndexing|Mul|Ne|Not|Or|Pow|PowByNatural|PythonMod|RShift|"
    "Rational|RoundDecimal|RoundToInt|StrictGreaterThan|StrictLessThan|ToFloat|TruncToFloat|"
    "TruncToInt|Unequality|Where|ceiling|floor|max|min|sqrt"
)
"""The functions of sympy and torch that sizes are written with."""

_POWERS = ("Pow", "PowByNatural", "FloatPow", "LShift")
_SYMBOL = re.compile("(s|u|zf|zuf)[0-9]{1,6}")
_ASSUMPTIONS = ("positive", "nonnegative", "negative", "nonpositive", "nonzero", "integer", "real")

IsAtom = Callable[[ast.expr], bool]


def symbolic_size(value: Any) -> str:
    """Check an expression of symbols, numbers, arithmetic and the functions above."""
    return _arithmetic(value, _is_symbol)


def guard(value: Any) -> str:
    """Check a condition on the sizes of inputs, such as `L['x'].size()[0] >= 2`."""
    return _arithmetic(value, _is_input_size)


def symbol_with_range(value: Any) -> str:
    """Check a symbolic size that has a range. torch does not evaluate it but looks it up as it is.

    torch counts up to the number of `u1`, hence the limit in `_SYMBOL`.
    """
    symbolic_size(value)
    if value.startswith(("u", "zuf")) and not _SYMBOL.fullmatch(value):
        raise Refused(f"is {quote(value)}, which is not a symbol")
    return value


def _arithmetic(value: Any, is_atom: IsAtom) -> str:
    if len(expect(str, value)) > _LONGEST_EXPRESSION:
        raise Refused(f"is an expression of {len(value)} characters")
    try:
        parsed = ast.parse(value.strip(), mode="eval").body
        _check_arithmetic(parsed, is_atom, in_power=False)
        return ast.unparse(parsed)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Refused(f"is {quote(value)}, which is not arithmetic") from None


def _check_arithmetic(node: ast.expr, is_atom: IsAtom, *, in_power: bool) -> None:
    if is_atom(node):
        return
    is_power = False
    match node:
        case ast.Constant(value=bool() | int() | float() as number) if abs(number) < 2**63:
            parts: list[ast.expr] = []
        case ast.Name(id="true" | "false" | "oo" | "int_oo"):
            parts = []
        case ast.UnaryOp(operand=operand):
            parts = [operand]
        case ast.BoolOp(values=parts):
            pass
        case ast.Compare(left=left, comparators=others) if _are_relations(node):
            parts = [left, *others]
        case ast.BinOp(left=left, op=operator, right=right):
            parts = [left, right]
            is_power = isinstance(operator, ast.Pow | ast.LShift)
        case ast.Call(func=ast.Name(id=function), args=parts, keywords=[]) if _FUNCTIONS.fullmatch(
            function
        ):
            is_power = function in _POWERS
        case _:
            raise Refused(f"holds {quote(ast.unparse(node))}, which is not arithmetic")
    if is_power and (in_power or _has_large_number(parts[1:])):
        raise Refused(f"holds {quote(ast.unparse(node))}, which is too large a power")
    for part in parts:
        _check_arithmetic(part, is_atom, in_power=in_power or is_power)


def _are_relations(node: ast.Compare) -> bool:
    relations = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    return all(isinstance(operator, relations) for operator in node.ops)


def _has_large_number(exponents: list[ast.expr]) -> bool:
    nodes = [node for exponent in exponents for node in ast.walk(exponent)]
    numbers = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return any(isinstance(n, int | float) and abs(n) > _LARGEST_EXPONENT for n in numbers)


def _is_symbol(node: ast.expr) -> bool:
    """Return whether this is `s0`, `Symbol('s0', integer=True)` or `Float('0.5', precision=53)`."""
    match node:
        case ast.Name(id=symbol):
            return _SYMBOL.fullmatch(symbol) is not None
        case ast.Call(ast.Name(id="Symbol"), [ast.Constant(value=str() as symbol)], assumptions):
            return _SYMBOL.fullmatch(symbol) is not None and all(
                assumption.arg in _ASSUMPTIONS and isinstance(assumption.value, ast.Constant)
                for assumption in assumptions
            )
        case ast.Call(
            ast.Name(id="Float"),
            [ast.Constant(value=str() as digits)],
            [ast.keyword(arg="precision", value=ast.Constant(value=53))],
        ):
            number = r"-?[0-9]{1,40}(\.[0-9]{0,40})?(e[+-]?[0-9]{1,3})?"
            return re.fullmatch(number, digits) is not None
        case _:
            return False


def _is_input_size(node: ast.expr) -> bool:
    """Return whether this is a size, stride or offset of an input: `L['x'].size()[0]`."""
    match node:
        case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=int())):
            return _is_input_size(call)
        case ast.Call(ast.Attribute(source, "size" | "stride" | "storage_offset"), [], []):
            while isinstance(source, ast.Subscript):
                match source.slice:
                    case ast.Constant(value=int()):
                        pass
                    case ast.Constant(value=str() as key):
                        name(key)
                    case _:
                        return False
                source = source.value
            return isinstance(source, ast.Name) and source.id == "L"
        case _:
            return False


# ---- trees of inputs and outputs

_SEQUENCES = ("builtins.tuple", "builtins.list")
_DICTIONARIES = ("builtins.dict", "collections.OrderedDict")


def tree(value: Any) -> str:
    """Check a nest of tuples, lists and dictionaries, as `torch.utils._pytree` writes it."""
    content = expect(list, _parse_json(value))
    if len(content) != 2 or content[0] != 1:
        raise Refused(f"is {quote(value)}, which is not a tree of inputs")
    return json.dumps([1, _check_tree(content[1])])


def _check_tree(node: Any) -> dict[str, Any]:
    if expect(dict, node).keys() != {"type", "context", "children_spec"}:
        raise Refused(f"holds {quote(node)}, which is not a tree of inputs")
    kind, context = node["type"], node["context"]
    children = [_check_tree(child) for child in expect(list, node["children_spec"])]
    if kind in _DICTIONARIES:
        context = json.dumps([module_path(key) for key in expect(list, _parse_json(context))])
    elif not (kind in _SEQUENCES and context == "null") and (kind, context, children) != (
        None,
        None,
        [],
    ):
        raise Refused(f"holds a {quote(kind)}; dmbp reads tuples, lists and dictionaries")
    return {"type": kind, "context": context, "children_spec": children}


def _parse_json(value: Any) -> Any:
    try:
        return json.loads(expect(str, value))
    except (ValueError, RecursionError):
        raise Refused(f"is {quote(value)}, which is not JSON") from None
