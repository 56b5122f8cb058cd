"""What deployed files have: branches, loops, recurrent layers, inputs that are held, sizes that are
left open, and weights in fewer bits."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn
from typer.testing import CliRunner

import dmbp
from dmbp.cli import app
from dmbp.errors import ModelError
from dmbp.models import InputSettings, load_model
from dmbp.models.exported_program import Ends, StatedInput
from dmbp.models.onnx.file import onnx_file_classifier
from tests.tolerance import FLOAT32

FLOAT, INT64, BOOL = 1, 7, 9
Value = tuple[str, int, Sequence[int | str | None]]


def noise(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    constants: dict[str, Any] | None = None,
    *,
    opset: int = 18,
) -> Any:
    """Write a file, and return the model in it."""
    tensors = [numpy_helper.from_array(numpy.asarray(v), k) for k, v in (constants or {}).items()]
    values = [[helper.make_tensor_value_info(*value) for value in v] for v in (inputs, outputs)]
    graph = helper.make_graph(list(nodes), "net", *values, tensors)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    onnx.save(model, path)
    return model


def branch(name: str, node: Any, output: str) -> Any:
    return helper.make_graph([node], name, [], [helper.make_tensor_value_info(output, FLOAT, None)])


def two_branches(condition: str) -> Any:
    """Twice the input if a condition holds, else its negative."""
    return helper.make_node(
        "If",
        [condition],
        ["y"],
        then_branch=branch("then", helper.make_node("Add", ["x", "x"], ["twice"]), "twice"),
        else_branch=branch("else", helper.make_node("Neg", ["x"], ["negative"]), "negative"),
    )


@pytest.mark.parametrize(("rate", "factor"), [(16000, 2), (8000, -1)])
def test_a_branch_that_a_held_input_decides(tmp_path: Path, rate: int, factor: int) -> None:
    nodes = [helper.make_node("Equal", ["rate", "usual"], ["is_usual"]), two_branches("is_usual")]
    inputs: list[Value] = [("x", FLOAT, ["n", 6]), ("rate", INT64, [])]
    save(tmp_path / "a.onnx", nodes, inputs, [("y", FLOAT, ["n", 6])], {"usual": 16000})
    found = onnx_file_classifier(tmp_path / "a.onnx", StatedInput(ends=Ends(hold={"rate": rate})))
    x = torch.randn(3, 6)
    assert found.input_shape == (6,)
    assert torch.equal(found.module(x), factor * x)


def test_held_inputs_and_the_output_in_a_toml_beside_the_file(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Equal", ["rate", "usual"], ["is_usual"]),
        two_branches("is_usual"),
        helper.make_node("Abs", ["y"], ["z"]),
    ]
    inputs: list[Value] = [("x", FLOAT, ["n", 6]), ("rate", INT64, [])]
    outputs: list[Value] = [("y", FLOAT, ["n", 6]), ("z", FLOAT, ["n", 6])]
    save(tmp_path / "a.onnx", nodes, inputs, outputs, {"usual": 16000})
    (tmp_path / "a.toml").write_text('output = "y"\nhold = {rate = 8000}')
    x, path = torch.randn(3, 6), str(tmp_path / "a.onnx")
    assert torch.equal(load_model(path).module(x), -x)
    given = Ends(output="z", hold={"rate": 16000})
    assert torch.equal(load_model(path, ends=given).module(x), (2 * x).abs())


def test_held_numbers_in_a_list(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "sizes"], ["y"])]
    inputs: list[Value] = [("x", FLOAT, [1, 6]), ("sizes", INT64, ["k"])]
    save(tmp_path / "a.onnx", nodes, inputs, [("y", FLOAT, None)])
    (tmp_path / "a.toml").write_text("hold = {sizes = [1, 2, 3]}")
    path = str(tmp_path / "a.onnx")
    assert load_model(path).module(torch.ones(1, 6)).shape == (1, 2, 3)
    given = Ends(hold={"sizes": [1, 3, 2]})
    assert load_model(path, ends=given).module(torch.ones(1, 6)).shape == (1, 3, 2)
    lines = ["--hold", "sizes=1,6,1", "--hold", "sizes=1,x"]
    for line, words in zip(
        (lines[:2], lines[2:]), ("outputs of 6×1", "numbers such as"), strict=True
    ):
        printed = CliRunner().invoke(app, ["doctor", path, *line])
        assert words in printed.output


def test_values_that_a_file_cannot_compute_with(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["sizes", "second"], ["width"]),
        helper.make_node("Mul", ["x", "width"], ["y"]),
    ]
    inputs: list[Value] = [("x", FLOAT, [1, 6]), ("sizes", INT64, ["k"])]
    save(tmp_path / "a.onnx", nodes, inputs, [("y", FLOAT, [1, 6])], {"second": 1})
    with pytest.raises(ModelError, match=r"cannot compute with the values of .* 'sizes': give"):
        load_model(str(tmp_path / "a.onnx"), ends=Ends(hold={"sizes": 4}))


def test_a_signal_of_a_size_that_is_left_open(tmp_path: Path) -> None:
    nodes = [helper.make_node("ReduceMean", ["x", "last"], ["y"], keepdims=0)]
    inputs: list[Value] = [("x", FLOAT, ["n", 2, "length"])]
    save(tmp_path / "a.onnx", nodes, inputs, [("y", FLOAT, ["n", 2])], {"last": [2]})
    found = load_model(str(tmp_path / "a.onnx"), inputs=InputSettings(size=16000))
    assert found.input_shape == (2, 16000)


@pytest.mark.parametrize("sizes", [[], [3]], ids=["any batch would do", "three are written down"])
def test_a_file_for_a_fixed_batch(tmp_path: Path, sizes: list[int]) -> None:
    """It is explained for each image by itself; three copies are run if nothing else runs."""
    nodes = classifier_nodes()[:-2]
    shape = [*(sizes or [0]), 5]
    nodes += [helper.make_node("Reshape", ["p", "shape"], ["y"])]
    constants = {"w": noise(5, 3, 3, 3), "shape": shape}
    save(
        tmp_path / "a.onnx",
        nodes,
        [("x", FLOAT, [3, 3, 9, 9])],
        [("y", FLOAT, [3, 5])],
        constants,
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = load_model(str(tmp_path / "a.onnx"))
    assert any("runs on 3 copies of every" in str(one.message) for one in said) == bool(sizes)
    images = torch.randn(2, 3, 9, 9)
    weights = torch.from_numpy(constants["w"])
    by_hand = nn.functional.conv2d(images, weights).relu().mean((2, 3))
    assert torch.allclose(found.module(images), by_hand, atol=FLOAT32)
    net = dmbp.linearize(found.module, images, target=[1, 2])
    assert torch.allclose(net.value(), by_hand[[0, 1], [1, 2]], atol=FLOAT32)


def test_inputs_of_a_fixed_batch_that_are_treated_differently(tmp_path: Path) -> None:
    for name, node in (
        ("place", helper.make_node("Mul", ["x", "weights"], ["y"])),
        ("mixed", helper.make_node("CumSum", ["x", "first"], ["y"])),
    ):
        constants = {"weights": noise(3, 4)} if name == "place" else {"first": 0}
        inputs: list[Value] = [("x", FLOAT, [3, 4])]
        save(tmp_path / f"{name}.onnx", [node], inputs, [("y", FLOAT, [3, 4])], constants)
    with pytest.raises(ModelError, match="batches of 3, whose inputs depend on each other or are"):
        load_model(str(tmp_path / "place.onnx"))
    mixed = load_model(str(tmp_path / "mixed.onnx"))
    with pytest.raises(ModelError, match="changes with the other images of its batch"):
        dmbp.linearize(mixed.module, torch.randn(1, 4), target=0)


def test_the_output_of_floating_point_is_explained(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ArgMax", ["x"], ["label"], axis=1, keepdims=0),
        helper.make_node("Neg", ["x"], ["probabilities"]),
    ]
    outputs: list[Value] = [("label", INT64, ["n"]), ("probabilities", FLOAT, ["n", 6])]
    save(tmp_path / "a.onnx", nodes, [("x", FLOAT, ["n", 6])], outputs)
    x = torch.randn(3, 6)
    assert torch.equal(onnx_file_classifier(tmp_path / "a.onnx").module(x), -x)


def test_a_branch_that_sizes_decide(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "last"], ["length"], axis=0),
        helper.make_node("Equal", ["length", "usual"], ["is_usual"]),
        two_branches("is_usual"),
    ]
    save(
        tmp_path / "a.onnx",
        nodes,
        [("x", FLOAT, ["n", "length"])],
        [("y", FLOAT, ["n", "length"])],
        {"last": 1, "usual": 6},
    )
    x = torch.randn(2, 6)
    for size, factor in ((6, 2), (5, -1)):
        found = onnx_file_classifier(tmp_path / "a.onnx", StatedInput(size=size))
        assert torch.equal(found.module(x[:, :size]), factor * x[:, :size])
    with pytest.raises(ModelError, match=r"shape \(1, any\).*give the open sizes with --size"):
        onnx_file_classifier(tmp_path / "a.onnx")


def test_a_branch_that_the_input_decides_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["is_positive"]),
        two_branches("is_positive"),
    ]
    y: list[Value] = [("y", FLOAT, ["n", 6])]
    save(tmp_path / "a.onnx", nodes, [("x", FLOAT, ["n", 6])], y, {"zero": numpy.float32(0)})
    with pytest.raises(
        ModelError, match=r"a branch or a loop, If at .*, that depends on more than"
    ):
        onnx_file_classifier(tmp_path / "a.onnx")


def test_a_loop_is_unrolled(tmp_path: Path) -> None:
    """Each step multiplies by its number plus two, and its result is collected."""
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["i"], ["number"], to=FLOAT),
            helper.make_node("Add", ["number", "two"], ["factor"]),
            helper.make_node("Mul", ["value", "factor"], ["next"]),
            helper.make_node("Identity", ["goes_on"], ["goes_on_still"]),
            helper.make_node("Identity", ["next"], ["row"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("goes_on", BOOL, []),
            helper.make_tensor_value_info("value", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("goes_on_still", BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, None),
            helper.make_tensor_value_info("row", FLOAT, None),
        ],
    )
    nodes = [
        helper.make_node("Loop", ["steps", "true", "x"], ["last", "rows"], body=body),
        helper.make_node("ReduceSum", ["rows", "first"], ["sum"], keepdims=0),
        helper.make_node("Add", ["last", "sum"], ["y"]),
    ]
    constants = {"steps": 3, "true": True, "two": numpy.float32(2), "first": [0]}
    save(tmp_path / "a.onnx", nodes, [("x", FLOAT, ["n", 4])], [("y", FLOAT, ["n", 4])], constants)
    x = torch.randn(2, 4)
    expected = 24 * x + (2 + 6 + 24) * x
    assert torch.allclose(onnx_file_classifier(tmp_path / "a.onnx").module(x), expected)


def test_a_loop_of_too_many_steps_is_refused(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["g"], ["h"]), helper.make_node("Neg", ["v"], ["w"])],
        "body",
        [helper.make_tensor_value_info(*v) for v in (("i", 7, []), ("g", 9, []), ("v", 1, None))],
        [helper.make_tensor_value_info(*v) for v in (("h", 9, []), ("w", 1, None))],
    )
    node = helper.make_node("Loop", ["steps", "true", "x"], ["y"], body=body)
    constants = {"steps": 10**6, "true": True}
    save(tmp_path / "a.onnx", [node], [("x", 1, ["n", 4])], [("y", 1, ["n", 4])], constants)
    with pytest.raises(ModelError, match="a loop of the file has more than 1024 steps"):
        onnx_file_classifier(tmp_path / "a.onnx")


RECURRENT = [
    ("LSTM", 4, {}),
    ("GRU", 3, {"linear_before_reset": 1}),
    ("GRU", 3, {}),
    ("RNN", 1, {}),
]


@pytest.mark.parametrize(("operator", "gates", "settings"), RECURRENT)
def test_recurrent_layers_compute_what_onnx_does(
    tmp_path: Path, operator: str, gates: int, settings: dict[str, Any]
) -> None:
    steps, batch, features, hidden = 5, 1, 4, 3
    constants = {
        "w": noise(1, gates * hidden, features, seed=1),
        "r": noise(1, gates * hidden, hidden, seed=2),
        "b": noise(1, 2 * gates * hidden, seed=3),
    }
    node = helper.make_node(
        operator, ["x", "w", "r", "b"], ["y", "last"], hidden_size=hidden, **settings
    )
    model = save(
        tmp_path / "a.onnx",
        [node, helper.make_node("Squeeze", ["y", "axes"], ["z"])],
        [("x", FLOAT, [steps, batch, features])],
        [("z", FLOAT, None)],
        {**constants, "axes": [1]},
        opset=14,
    )
    x = noise(steps, batch, features)
    (expected,) = ReferenceEvaluator(model).run(["z"], {"x": x})
    found = graph_result(tmp_path / "a.onnx", "z", torch.from_numpy(x))
    assert numpy.allclose(found.numpy(), expected, atol=10 * FLOAT32)


def graph_result(path: Path, output: str, x: Tensor) -> Tensor:
    """What a file's graph computes, without a check of what its first dimension is."""
    from dmbp.models.onnx.file import read_model
    from dmbp.models.onnx.graph import OnnxModule, read_graph

    return OnnxModule(read_graph(read_model(path), "x", output, example=x))(x)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_bidirectional", [False, True])
def test_recurrent_layers_that_torch_exports(
    tmp_path: Path, kind: Any, is_bidirectional: bool
) -> None:
    torch.manual_seed(0)
    layer = kind(4, 3, bidirectional=is_bidirectional).eval()
    x = torch.randn(5, 1, 4)
    weights: dict[str, Any] = {}
    order = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}[kind.__name__]
    for short, names in {
        "w": ["weight_ih"],
        "r": ["weight_hh"],
        "b": ["bias_ih", "bias_hh"],
    }.items():
        per_direction = []
        for suffix in ("", "_reverse")[: 1 + is_bidirectional]:
            parts = [getattr(layer, f"{name}_l0{suffix}") for name in names]
            gates = [[part.chunk(len(order))[k] for k in order] for part in parts]
            per_direction.append(torch.cat([torch.cat(one) for one in gates]))
        weights[short] = torch.stack(per_direction).detach().numpy()
    settings: dict[str, Any] = {"linear_before_reset": 1} if kind is nn.GRU else {}
    direction = "bidirectional" if is_bidirectional else "forward"
    node = helper.make_node(
        kind.__name__, ["x", "w", "r", "b"], ["y"], hidden_size=3, direction=direction, **settings
    )
    save(tmp_path / "a.onnx", [node], [("x", FLOAT, [5, 1, 4])], [("y", FLOAT, None)], weights)
    found = graph_result(tmp_path / "a.onnx", "y", x)  # (time, directions, batch, hidden)
    expected = layer(x)[0].unflatten(-1, (-1, 3)).transpose(1, 2)
    assert torch.allclose(found, expected, atol=FLOAT32)


def test_peepholes_are_not_ignored(tmp_path: Path) -> None:
    constants = {"w": noise(1, 12, 4), "r": noise(1, 12, 3), "b": noise(1, 24), "p": noise(1, 9)}
    node = helper.make_node("LSTM", ["x", "w", "r", "b", "", "", "", "p"], ["y"], hidden_size=3)
    save(tmp_path / "a.onnx", [node], [("x", FLOAT, [5, 1, 4])], [("y", FLOAT, None)], constants)
    with pytest.raises(ModelError, match="LSTM with peepholes is not supported"):
        graph_result(tmp_path / "a.onnx", "y", torch.randn(5, 1, 4))


def test_a_recurrent_network_is_explained_with_its_state_held(tmp_path: Path) -> None:
    constants = {
        "w": noise(1, 12, 4),
        "r": noise(1, 12, 3),
        "b": noise(1, 24),
        "first": [0],
        "second": [1],
    }
    nodes = [
        helper.make_node("Unsqueeze", ["x", "first"], ["sequence"]),
        helper.make_node(
            "LSTM", ["sequence", "w", "r", "b", "", "h", "c"], ["y", "hn", "cn"], hidden_size=3
        ),
        helper.make_node("Squeeze", ["hn", "first"], ["scores"]),
        helper.make_node("Sigmoid", ["scores"], ["probabilities"]),
    ]
    state: list[int | str | None] = [1, "n", 3]
    save(
        tmp_path / "a.onnx",
        nodes,
        [("x", FLOAT, ["n", 4]), ("h", FLOAT, state), ("c", FLOAT, state)],
        [("probabilities", FLOAT, ["n", 3]), ("hn", FLOAT, state), ("cn", FLOAT, state)],
        constants,
    )
    found = onnx_file_classifier(tmp_path / "a.onnx")
    x = torch.randn(2, 4)
    assert found.module(x).shape == (2, 3)
    with pytest.warns(UserWarning, match="ends in a sigmoid: the scores before it are explained"):
        net = dmbp.linearize(found.module, x, target=1)
    assert torch.allclose(net.value().sigmoid(), found.module(x)[:, 1], atol=FLOAT32)
    held = onnx_file_classifier(
        tmp_path / "a.onnx", StatedInput(ends=Ends(hold={"h": torch.ones(1, 1, 3)}))
    )
    assert not torch.allclose(held.module(x), found.module(x), atol=1e-3)
    for options, sentence in (
        (Ends(hold={"z": 1}), "has no other input 'z': it has h, c"),
        (
            Ends(hold={"h": torch.ones(2, 1, 3)}),
            r"takes 'h' of shape \(1, 1, 3\), not \(2, 1",
        ),
        (Ends(input="z"), "has no input 'z': it has x, h, c"),
        (Ends(output="z"), "has no output 'z': it has probabilities, hn, cn"),
    ):
        with pytest.raises(ModelError, match=sentence):
            onnx_file_classifier(tmp_path / "a.onnx", StatedInput(ends=options))


def classifier_nodes(source: str = "x") -> list[Any]:
    return [
        helper.make_node("Conv", [source, "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"], axis=1),
    ]


def test_a_dynamic_size_may_be_written_as_minus_one(tmp_path: Path) -> None:
    model = save(
        tmp_path / "a.onnx",
        classifier_nodes(),
        [("x", FLOAT, ["n", 3, "h", "w"])],
        [("y", FLOAT, ["n", 5])],
        {"w": noise(5, 3, 3, 3)},
    )
    sizes = model.graph.input[0].type.tensor_type.shape.dim
    for k in (0, 2, 3):
        sizes[k].dim_value = -1
    onnx.save(model, tmp_path / "a.onnx")
    found = onnx_file_classifier(tmp_path / "a.onnx")
    assert found.module(torch.randn(2, 3, 30, 20)).shape == (2, 5)


def test_a_size_that_the_network_demands_is_found(tmp_path: Path) -> None:
    """The last convolution needs a height of 48, and the file does not say so."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[48, 1]),
        helper.make_node("Squeeze", ["c", "axes"], ["s"]),
        helper.make_node("ReduceMean", ["s", "last"], ["y"], keepdims=0),
    ]
    constants = {"w": noise(5, 3, 48, 1), "axes": [2], "last": [2]}
    x: list[Value] = [("x", FLOAT, ["n", 3, "h", "w"])]
    save(tmp_path / "a.onnx", nodes, x, [("y", FLOAT, ["n", 5])], constants)
    found = onnx_file_classifier(tmp_path / "a.onnx")
    assert found.preprocessing.size == (48, 320)
    other = onnx_file_classifier(tmp_path / "a.onnx", StatedInput(size=(48, 100)))
    assert other.preprocessing.size == (48, 100)


def test_weights_in_fewer_bits_are_dequantised(tmp_path: Path) -> None:
    levels = numpy.random.default_rng(0).integers(-128, 128, (5, 3, 3, 3)).astype(numpy.int8)
    scale = numpy.linspace(0.01, 0.05, 5, dtype=numpy.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["levels", "scale"], ["w"], axis=0),
        *classifier_nodes(),
    ]
    model = save(
        tmp_path / "a.onnx",
        nodes,
        [("x", FLOAT, ["n", 3, 16, 16])],
        [("y", FLOAT, ["n", 5])],
        {"levels": levels, "scale": scale},
        opset=19,
    )
    x = noise(2, 3, 16, 16)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    found = onnx_file_classifier(tmp_path / "a.onnx").module(torch.from_numpy(x))
    assert numpy.allclose(found.numpy(), expected, atol=FLOAT32)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_zero", [False, True])
def test_matrices_of_few_bits(tmp_path: Path, bits: int, has_zero: bool) -> None:
    """Against the matrix that is packed, written out."""
    inputs, outputs, block = 64, 6, 32
    draw = numpy.random.default_rng(0)
    levels = draw.integers(0, 2**bits, (outputs, inputs), dtype=numpy.uint8)
    scale = draw.random((outputs, inputs // block), dtype=numpy.float32)
    zeros = draw.integers(0, 2**bits, (outputs, inputs // block), dtype=numpy.uint8)
    middle = zeros if has_zero else numpy.full_like(zeros, 2 ** (bits - 1))
    matrix = (levels - middle.repeat(block, 1).astype(numpy.float32)) * scale.repeat(block, 1)

    def pack(numbers: Any) -> Any:
        return numbers if bits == 8 else numbers[..., ::2] | (numbers[..., 1::2] << 4)

    constants = {"b": pack(levels.reshape(outputs, -1, block)), "s": scale.flatten()}
    constants |= {"z": pack(zeros).flatten()} if has_zero else {}
    node = helper.make_node(
        "MatMulNBits",
        ["x", "b", "s", *(["z"] if has_zero else [])],
        ["y"],
        domain="com.microsoft",
        K=inputs,
        N=outputs,
        bits=bits,
        block_size=block,
    )
    save(
        tmp_path / "a.onnx",
        [node],
        [("x", FLOAT, ["n", inputs])],
        [("y", FLOAT, ["n", outputs])],
        constants,
    )
    x = noise(3, inputs)
    found = onnx_file_classifier(tmp_path / "a.onnx").module(torch.from_numpy(x))
    assert numpy.allclose(found.numpy(), x @ matrix.T, rtol=1e-4, atol=1e-3)
