"""Every operator against onnx's reference evaluator, on one call or several."""

from typing import Any

import numpy
import pytest
import torch

from dmbp.errors import ModelError
from dmbp.models.onnx.file import read_model
from dmbp.models.onnx.graph import OnnxModule, read_graph
from dmbp.models.onnx.operators import OPERATORS
from tests.tolerance import FLOAT32

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")

NEWEST = 23


def noise(*shape: int) -> Any:
    return numpy.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def sizes(*numbers: int) -> Any:
    return numpy.array(numbers, dtype="int64")


X = noise(2, 4, 6, 6)
UNARY = (
    *(
        "Identity",
        "Dropout",
        "Relu",
        "Sigmoid",
        "Tanh",
        "Softplus",
        "Softsign",
        "Mish",
        "HardSwish",
    ),
    *("Elu", "Selu", "LeakyRelu", "Celu", "ThresholdedRelu", "HardSigmoid", "Gelu", "Erf", "Exp"),
    *("Abs", "Neg", "Reciprocal", "Sin", "Cos", "Atan", "Floor", "Ceil", "Round", "Sign"),
    *("Shape", "Size", "Flatten", "Transpose", "Trilu", "GlobalAveragePool", "GlobalMaxPool"),
    *("Softmax", "LogSoftmax", "LpNormalization", "ArgMax", "ArgMin"),
)
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Pow")
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
REDUCTIONS = tuple(name for name in OPERATORS if name.startswith("Reduce"))

Case = tuple[str, list[Any], dict[str, Any]]

CASES: list[Case] = [
    *((name, [], {}) for name in UNARY),
    *((name, [noise(4, 1, 6)], {}) for name in BINARY if name != "Pow"),
    *((name, [X * (X > 0)], {}) for name in COMPARISONS),
    ("Pow", [numpy.array(2.0, dtype="float32")], {}),
    *((name, [sizes(2, 3)], {"keepdims": keep}) for name in REDUCTIONS for keep in (0, 1)),
    ("ReduceMean", [], {"noop_with_empty_axes": 1}),
    ("ReduceSum", [sizes(2, 3)], {"noop_with_empty_axes": 1}),
    ("HardSigmoid", [], {"alpha": 1 / 6, "beta": 0.5}),
    ("Gelu", [], {"approximate": "tanh"}),
    ("Clip", [numpy.float32(-0.5), numpy.float32(0.5)], {}),
    ("Clip", [numpy.float32(-0.5)], {}),
    ("PRelu", [noise(4, 1, 1)], {}),
    ("PRelu", [noise(4, 6, 6)], {}),
    ("Mod", [numpy.float32(0.7)], {"fmod": 1}),
    ("Cast", [], {"to": 7}),
    ("CastLike", [sizes(1)], {}),
    ("IsNaN", [], {}),
    ("IsInf", [], {}),
    ("Conv", [noise(3, 4, 3, 3), noise(3)], {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ("Conv", [noise(4, 2, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2], "group": 2}),
    ("Conv", [noise(4, 4, 2, 2)], {"auto_pad": "SAME_LOWER", "dilations": [1, 1]}),
    ("ConvTranspose", [noise(4, 3, 3, 3), noise(3)], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("MaxPool", [], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]}),
    ("MaxPool", [], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("AveragePool", [], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]}),
    ("AveragePool", [], {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}),
    ("MatMul", [noise(6, 5)], {}),
    ("MatMul", [noise(4, 6, 5)], {}),
    ("Einsum", [noise(2, 4, 6)], {"equation": "bchw,bcw->bch"}),
    ("BatchNormalization", [noise(4), noise(4), noise(4), noise(4) ** 2], {"epsilon": 1e-3}),
    ("LayerNormalization", [noise(6), noise(6)], {}),
    ("LayerNormalization", [noise(6, 6)], {"axis": -2}),
    ("RMSNormalization", [noise(6)], {"axis": -1}),
    ("GroupNormalization", [noise(4), noise(4)], {"num_groups": 2}),
    ("InstanceNormalization", [noise(4), noise(4)], {}),
    ("Softmax", [], {"axis": 1}),
    ("Attention", [noise(2, 4, 5, 6), noise(2, 4, 5, 6)], {}),
    ("Attention", [noise(2, 2, 5, 6), noise(2, 2, 5, 6)], {"scale": 0.3}),
    ("Reshape", [sizes(0, -1, 9)], {}),
    ("Flatten", [], {"axis": 2}),
    ("Transpose", [], {"perm": [0, 2, 3, 1]}),
    ("Squeeze", [], {}),
    ("Unsqueeze", [sizes(0, -1)], {}),
    ("Concat", [noise(2, 1, 6, 6)], {"axis": 1}),
    ("Split", [sizes(1, 3)], {"axis": 1}),
    ("Split", [], {"axis": 1, "num_outputs": 2}),
    ("Slice", [sizes(1, 0), sizes(9, -1), sizes(2, 3), sizes(2, 1)], {}),
    ("Slice", [sizes(-1), sizes(-99), sizes(3), sizes(-2)], {}),
    ("Gather", [sizes(0, -1)], {"axis": 1}),
    ("Gather", [numpy.array([[0, 1], [2, 3]])], {"axis": 2}),
    ("Gather", [numpy.array(1)], {"axis": 1}),
    ("GatherElements", [numpy.zeros((2, 4, 6, 1), dtype="int64")], {"axis": 3}),
    ("GatherND", [numpy.array([[0, 1], [1, 3]])], {}),
    ("ScatterND", [numpy.array([[0, 1], [1, 3]]), noise(2, 6, 6)], {}),
    ("Expand", [sizes(3, 1, 4, 1, 6)], {}),
    ("Tile", [sizes(1, 2, 1, 1)], {}),
    ("Pad", [sizes(0, 0, 1, 2, 0, 0, 0, 1), numpy.float32(0.5)], {}),
    ("Pad", [sizes(1, 1, 2, 2), "", sizes(2, 3)], {"mode": "reflect"}),
    ("TopK", [sizes(2)], {"axis": 1}),
    ("CumSum", [numpy.array(1)], {}),
    ("DepthToSpace", [], {"blocksize": 2}),
    ("DepthToSpace", [], {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", [], {"blocksize": 2}),
    (
        "Resize",
        ["", numpy.array([1, 1, 2, 2], dtype="float32")],
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    ("Resize", ["", "", sizes(2, 4, 9, 9)], {"mode": "linear"}),
    *(
        ("Resize", ["", numpy.array([1, 1, scale, scale], dtype="float32")], {"mode": mode})
        for scale, mode in ((1.4, "linear"), (0.7, "linear"), (1.4, "cubic"), (3, "nearest"))
    ),
    *(("PRelu", [noise(*shape)], {}) for shape in ((1,), (4, 1, 1), (6,), (6, 1), (4, 1, 6))),
    ("Pad", [sizes(1, 2), "", sizes(3)], {"mode": "edge"}),
    ("Flatten", [], {"axis": -4}),
    ("Flatten", [], {"axis": 4}),
    *(
        (
            name,
            [],
            {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [0, 0, 1, 1], "ceil_mode": 1},
        )
        for name in ("MaxPool", "AveragePool")
    ),
    (
        "Resize",
        ["", "", sizes(2, 4, 9, 9)],
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    ("ScatterElements", [sizes(1, -2).reshape(1, 2, 1, 1), noise(1, 2, 1, 1)], {"axis": 1}),
    ("GridSample", [noise(2, 5, 3, 2)], {}),
    ("GridSample", [noise(2, 5, 3, 2)], {"mode": "nearest", "padding_mode": "border"}),
    ("GridSample", [noise(2, 5, 3, 2)], {"padding_mode": "reflection", "align_corners": 1}),
]


def one_node_model(case: Case, opset: int = NEWEST, given: Any = X) -> Any:
    name, others, attributes = case
    constants = {f"c{k}": value for k, value in enumerate(others) if not isinstance(value, str)}
    inputs = ["x", *(f"c{k}" if f"c{k}" in constants else "" for k in range(len(others)))]
    outputs = ["y", "z"] if name in ("Split", "TopK") else ["y"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(name, inputs, outputs, **attributes)],
        "one",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(given.shape))],
        [onnx.helper.make_empty_tensor_value_info(one) for one in outputs],
        [onnx.numpy_helper.from_array(numpy.asarray(v), n) for n, v in constants.items()],
    )
    sets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(graph, opset_imports=sets, ir_version=10)


def same_result(model: Any, given: Any = X) -> None:
    expected = reference.ReferenceEvaluator(model).run(["y"], {"x": given})[0]
    found = torch.as_tensor(run(model, given)).numpy()
    assert found.shape == expected.shape
    assert numpy.allclose(found, expected, rtol=FLOAT32, atol=FLOAT32, equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_an_operator_computes_what_onnx_does(case: Case) -> None:
    same_result(one_node_model(case))


SIGNAL = noise(2, 30)
FOURIER: list[Case] = [
    ("STFT", [sizes(4)[0], noise(8)], {}),
    ("STFT", [sizes(5)[0], "", sizes(7)[0]], {}),
    ("STFT", [sizes(4)[0], noise(8), sizes(8)[0]], {"onesided": 0}),
]


@pytest.mark.parametrize("case", FOURIER, ids=["window", "length", "both sides"])
def test_fourier_transforms_of_frames(case: Case) -> None:
    same_result(one_node_model(case, given=SIGNAL[..., None]), SIGNAL[..., None])


UNSUPPORTED_SETTINGS: list[Case] = [
    ("CumSum", [numpy.array(1)], {"reverse": 1}),
    ("Selu", [], {"alpha": 1.2}),
    ("ScatterElements", [sizes(1).reshape(1, 1, 1, 1), noise(1, 1, 1, 1)], {"reduction": "add"}),
    ("ArgMax", [], {"select_last_index": 1}),
    ("AveragePool", [], {"kernel_shape": [2, 2], "dilations": [2, 2]}),
    ("Resize", ["", "", sizes(2, 4, 9, 9)], {"mode": "linear", "antialias": 1}),
    ("Resize", ["", "", sizes(2, 4, 9, 9)], {"mode": "cubic", "cubic_coeff_a": -0.5}),
    ("Resize", ["", numpy.array([1, 2, 2, 1], dtype="float32")], {"mode": "linear"}),
    (
        "Resize",
        ["", numpy.array([1, 1, 3, 3], dtype="float32")],
        {"coordinate_transformation_mode": "asymmetric"},
    ),
]


@pytest.mark.parametrize("case", UNSUPPORTED_SETTINGS, ids=lambda case: case[0])
def test_no_setting_is_ignored_silently(case: Case) -> None:
    with pytest.raises(ModelError, match=rf"{case[0]} .*supported"):
        run(one_node_model(case))


@pytest.mark.parametrize("name", ["forward", "training", "half", "Relu_2"])
def test_nodes_may_have_any_name(name: str) -> None:
    names = [name, "", ""]
    nodes = [
        onnx.helper.make_node("Relu", [given], [made], name=name)
        for given, made, name in zip("xab", "aby", names, strict=True)
    ]
    model = one_node_model(("Relu", [], {}))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    same_result(model)


def test_numbers_divide_as_in_onnx() -> None:
    nodes = [
        onnx.helper.make_node("Div", ["n", "d"], ["q"]),
        onnx.helper.make_node("Mod", ["n", "d"], ["m"], fmod=1),
        onnx.helper.make_node("Add", ["q", "m"], ["s"]),
        onnx.helper.make_node("Cast", ["s"], ["f"], to=1),
        onnx.helper.make_node("Mul", ["x", "f"], ["y"]),
    ]
    model = one_node_model(("Relu", [], {}))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    numbers = {"n": numpy.array(-7), "d": numpy.array(2)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in numbers.items())
    same_result(model)


@pytest.mark.parametrize(
    "case",
    [
        ("ReduceMean", [], {"axes": [2, 3]}),
        ("Clip", [], {"min": -0.5, "max": 0.5}),
        ("Pad", [], {"pads": [0, 0, 1, 1, 0, 0, 2, 2], "value": 0.5}),
        ("Slice", [], {"starts": [1], "ends": [3], "axes": [2]}),
        ("Unsqueeze", [], {"axes": [0]}),
    ],
    ids=lambda case: case[0],
)
def test_older_operator_sets_have_settings_as_attributes(case: Case) -> None:
    same_result(one_node_model(case, opset=9))


@pytest.mark.parametrize("name", ["Log", "Sqrt"])
def test_operators_on_positive_numbers(name: str) -> None:
    positive = abs(X) + numpy.float32(0.1)
    same_result(one_node_model((name, [], {}), given=positive), positive)


@pytest.mark.parametrize("name", ["And", "Or", "Xor"])
def test_logic(name: str) -> None:
    """Two comparisons are combined, negated, and select between an input and a constant."""
    make = onnx.helper.make_node
    model = one_node_model(("Relu", [], {}))
    del model.graph.node[:]
    model.graph.node.extend(
        [
            make("Greater", ["x", "low"], ["a"]),
            make("Less", ["x", "high"], ["b"]),
            make(name, ["a", "b"], ["c"]),
            make("Not", ["c"], ["n"]),
            make("Where", ["n", "x", "high"], ["y"]),
        ]
    )
    bounds = {"low": numpy.float32(-0.5), "high": numpy.float32(0.5)}
    constants = [onnx.numpy_helper.from_array(numpy.asarray(v), k) for k, v in bounds.items()]
    model.graph.initializer.extend(constants)
    same_result(model)


def test_gemm() -> None:
    flat = noise(2, 6)
    for attributes in ({"transB": 1}, {"transB": 1, "alpha": 0.5, "beta": 2.0}):
        same_result(one_node_model(("Gemm", [noise(3, 6), noise(3)], attributes), given=flat), flat)


def run(model: Any, given: Any = X) -> torch.Tensor:
    return OnnxModule(read_graph(model, "x", "y"))(torch.from_numpy(given))


def test_softmax_of_older_operator_sets_is_over_all_dimensions_from_an_axis_on() -> None:
    """onnx's reference evaluator only knows the newer meaning."""
    found = run(one_node_model(("Softmax", [], {"axis": 2}), opset=9))
    assert torch.allclose(found.sum((2, 3)), torch.ones(2, 4))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_local_response_normalisation(size: int) -> None:
    """Computed here, because onnx's reference evaluator only normalises the first few images."""
    settings = {"size": size, "alpha": 0.1 * size, "beta": 0.5, "bias": 2.0}
    found = run(one_node_model(("LRN", [], settings)))
    before, after = (size - 1) // 2, size // 2
    squares = numpy.pad(X**2, ((0, 0), (before, after), (0, 0), (0, 0)))
    total = sum(squares[:, k : k + X.shape[1]] for k in range(size))
    expected = X / numpy.sqrt(2.0 + 0.1 * total)
    assert numpy.allclose(found.numpy(), expected, rtol=FLOAT32, atol=FLOAT32)


def test_every_row_of_the_table_is_tested() -> None:
    """Operators without a case are listed here by name, so that a new row needs one."""
    elsewhere = {"Log", "Sqrt", "Where", "Not", "And", "Or", "Xor", "Gemm", "Swish", "LRN"}
    made = {"ConstantOfShape", "Range", "Upsample"}
    deployed = {"STFT", "LSTM", "GRU", "RNN", "DequantizeLinear", "com.microsoft.MatMulNBits"}
    assert set(OPERATORS) - {case[0] for case in CASES} == elsewhere | made | deployed


def test_a_file_gives_the_same_result_as_the_model_in_memory(tmp_path: Any) -> None:
    onnx.save(one_node_model(("Relu", [], {})), tmp_path / "net.onnx")
    same_result(read_model(tmp_path / "net.onnx"))
