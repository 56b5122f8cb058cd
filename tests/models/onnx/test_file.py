"""ONNX files: an export is explained as the module it was made from; unusable files are refused."""

import random
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dmbp.errors import DMBPError, ModelError, WeightsError
from dmbp.linear.model.wrappers import OneAtATime
from dmbp.metrics.reinitialisation import with_reinitialised_layer
from dmbp.models import load_model
from dmbp.models.onnx.file import read_classifier
from dmbp.models.torchvision_models import import_torchvision
from dmbp.workflows.doctor import diagnose
from dmbp.workflows.prediction import ModelSpec
from tests import nets
from tests.models.networks import assert_same_map, export_onnx, small_network
from tests.real import photographs
from tests.tolerance import FLOAT32, FLOAT64, relative

onnx = pytest.importorskip("onnx")
VisionTransformer = import_torchvision().models.VisionTransformer
SwinTransformer = import_torchvision().models.SwinTransformer


def test_the_real_squeezenet_in_onnx(shared: Path, tmp_path: Path) -> None:
    weights = shared / "models" / "squeezenet1_1_imagenet.safetensors"
    module = load_model("squeezenet1_1", weights=weights)
    images, classes = photographs(shared, module.preprocessing, 1)
    found = load_model(str(export_onnx(module.module, tmp_path / "net.onnx", 224, dynamic=True)))
    assert_same_map(found, module.module, images, int(classes[0]))


def mobilenet() -> nn.Module:
    return import_torchvision().models.mobilenet_v2(weights=None, num_classes=5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [nets.ReusedNet, nets.ResidualNet, mobilenet])
def test_exports_of_other_architectures(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    """They have shared activations, batch norm and clipping; two images are run at once."""
    model = make().eval()
    found = load_model(str(export_onnx(model, tmp_path / "net.onnx", 64, dynamic=True)))
    assert found.preprocessing.crop == 64
    assert_same_map(found, model, torch.randn(2, 3, 64, 64), [1, 2])


def newer_spelling(opset: int) -> object:
    """A model as current exporters write it: axes as an input of the mean, allowzero."""
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    weight = torch.arange(24.0).sin().reshape(2, 3, 2, 2)
    constants = {"w": weight, "axes": torch.tensor([2, 3]), "sizes": torch.tensor([-1, 2])}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("ReduceMean", ["r", "axes"], ["m"], keepdims=1),
        helper.make_node("Reshape", ["m", "sizes"], ["s"], allowzero=1),
        helper.make_node("Identity", ["s"], ["y"]),
    ]
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kind, ["batch", 3, 9, 9])],
        [helper.make_tensor_value_info("y", kind, ["batch", 2])],
        [numpy_helper.from_array(value.numpy(), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize("opset", [18, 20, 22])
def test_newer_spellings(tmp_path: Path, opset: int) -> None:
    onnx.save(newer_spelling(opset), tmp_path / "net.onnx")
    found = load_model(str(tmp_path / "net.onnx"))
    model = nn.Sequential(
        nn.Conv2d(3, 2, 2, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    model[0].weight.data = torch.arange(24.0).sin().reshape(2, 3, 2, 2)
    images = torch.randn(3, 3, 9, 9)
    assert torch.allclose(found.module(images), model(images), atol=1e-6)
    assert_same_map(found, model, images, 1)


def vision_transformer() -> nn.Module:
    return VisionTransformer(32, 16, 2, 2, 16, 24, num_classes=4)


def swin_transformer() -> nn.Module:
    return SwinTransformer([4, 4], 8, [2, 2], [2, 2], [4, 4], num_classes=4)


class SqueezeAndExcitation(nn.Module):
    """SiLU, group norm, a gate for each channel, and a shuffle that computes with sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, stride=2), nn.GroupNorm(2, 8)
        self.down, self.up, self.head = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        z = F.silu(self.norm(self.stem(images)))
        z = z * F.hardsigmoid(self.up(F.relu(self.down(z.mean((2, 3), keepdim=True)))))
        batch, channels, height, width = z.shape
        z = z.view(batch, 2, channels // 2, height, width).transpose(1, 2).flatten(1, 2)
        return self.head(F.hardswish(z).mean((2, 3)))


NETWORKS = {
    "vision transformer": vision_transformer,
    "swin transformer": swin_transformer,
    "squeeze and excitation": SqueezeAndExcitation,
}
# Swin takes the newer exporter a minute, so benchmarks/onnx_files.py compares it instead.
EXPORTS = [
    ("swin transformer", False, True),
    ("vision transformer", False, True),
    ("vision transformer", True, False),
    ("squeeze and excitation", False, False),
    ("squeeze and excitation", True, True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dynamo", "dynamic"), EXPORTS)
def test_exports_of_modern_networks(tmp_path: Path, name: str, dynamo: bool, dynamic: bool) -> None:
    if dynamo:
        pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    for parameter in model.parameters():  # a head of zeros would hide everything
        nn.init.normal_(parameter, std=0.2)
    path = export_onnx(model.double(), tmp_path / "net.onnx", 32, dynamic=dynamic, dynamo=dynamo)
    found = read_classifier(path)
    assert isinstance(found.module, OneAtATime) == (not dynamic)
    images = torch.randn(2, 3, 32, 32).double()
    assert relative(found.module(images), model(images)) <= FLOAT64
    assert_same_map(found, model, images, [1, 2])


class Uneven(nn.Module):
    """A network like TensorFlow's, with more padding after an image than before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        z = F.relu(self.first(F.pad(images, (0, 1, 0, 1))))
        return self.last(F.max_pool2d(F.pad(z, (0, 1, 0, 1)), 3, 2).mean((2, 3)))


def test_channels_last_and_uneven_padding(tmp_path: Path) -> None:
    model = Uneven().eval()
    helper, make = onnx.helper, onnx.helper.make_node
    uneven = {"auto_pad": "SAME_UPPER", "strides": [2, 2], "kernel_shape": [3, 3]}
    nodes = [
        make("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        make("Conv", ["t", "first.weight", "first.bias"], ["c"], **uneven),
        make("Relu", ["c"], ["r"]),
        make("MaxPool", ["r"], ["p"], **uneven),
        make("GlobalAveragePool", ["p"], ["g"]),
        make("Flatten", ["g"], ["f"]),
        make("Gemm", ["f", "last.weight", "last.bias"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, ["batch", 16, 16, 3])],
        [helper.make_tensor_value_info("y", 1, ["batch", 3])],
        [onnx.numpy_helper.from_array(v.numpy(), n) for n, v in model.state_dict().items()],
    )
    onnx.save(helper.make_model(graph), tmp_path / "net.onnx")
    found = load_model(str(tmp_path / "net.onnx"))
    images = torch.randn(2, 3, 16, 16)
    assert relative(found.module(images), model(images)) <= FLOAT32
    assert_same_map(found, model, images, 1)


def test_a_file_that_claims_any_batch_size_and_takes_one(tmp_path: Path) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(3, 2)

        def forward(self, images: Tensor) -> Tensor:
            return self.last(images.mean((2, 3)).reshape(1, 3))

    model, path = Fixed().eval(), tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example, axes = torch.zeros(1, 3, 8, 8), {"images": {0: "batch"}}
        torch.onnx.export(
            model, (example,), path, dynamo=False, input_names=["images"], dynamic_axes=axes
        )
    found = load_model(str(path)).module
    assert isinstance(found, OneAtATime)
    assert found(torch.randn(3, 3, 8, 8)).shape == (3, 2)


def test_half_precision_is_read_as_single(tmp_path: Path) -> None:
    path = export_onnx(small_network().half(), tmp_path / "net.onnx", 16, dynamic=True)
    found = load_model(str(path)).module
    assert {weight.dtype for weight in found.parameters()} == {torch.float32}
    assert found(torch.randn(2, 3, 16, 16)).shape == (2, 3)


def test_the_last_layer_can_be_reinitialised(tmp_path: Path) -> None:
    found = load_model(
        str(export_onnx(small_network(), tmp_path / "net.onnx", 16, dynamic=True))
    ).module
    images = torch.randn(1, 3, 16, 16)
    other = with_reinitialised_layer(found, images)
    assert not torch.allclose(other(images), found(images))


def test_damaged_files(tmp_path: Path) -> None:
    whole = export_onnx(small_network(), tmp_path / "net.onnx", 16, dynamic=False).read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.onnx").write_text("hello")
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("cut.onnx", "text.onnx"):
        with pytest.raises(ModelError, match="is damaged, or not an ONNX model"):
            load_model(str(tmp_path / name))
    with pytest.raises(ModelError, match=r"empty\.onnx cannot be read: it is empty"):
        load_model(str(tmp_path / "empty.onnx"))
    with pytest.raises(ModelError, match="there is no model file"):
        load_model(str(tmp_path / "missing.onnx"))
    with pytest.raises(WeightsError, match="has its weights inside"):
        load_model(str(tmp_path / "net.onnx"), weights=Path("a.pth"))


def test_weights_in_a_file_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(newer_spelling(20), path, save_as_external_data=True, location="w", size_threshold=0)
    assert load_model(str(path)).module(torch.randn(1, 3, 9, 9)).shape == (1, 2)
    (tmp_path / "w").write_bytes(b"1234")
    with pytest.raises(ModelError, match=r"the weights beside .* are damaged"):
        load_model(str(path))
    (tmp_path / "w").unlink()
    with pytest.raises(ModelError, match="has weights in w, which is not beside it"):
        load_model(str(path))


def unknown(model: Any) -> None:
    model.graph.node[1].op_type = "Frobnicate"


def foreign(model: Any) -> None:
    model.graph.node[1].domain = "com.example"


def quantised(model: Any) -> None:
    model.graph.node[1].op_type = "DynamicQuantizeLinear"


def whole_numbers_too(model: Any) -> None:
    model.graph.input.append(onnx.helper.make_tensor_value_info("rate", 7, []))


def of_bytes(model: Any) -> None:
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8


def several_outputs(model: Any) -> None:
    model.graph.output.append(onnx.helper.make_tensor_value_info("r", 1, ["batch", 2]))


def no_photos(model: Any) -> None:
    sound = onnx.helper.make_tensor_value_info("x", 1, ["batch", 3, "length"])
    model.graph.input[0].CopyFrom(sound)


def no_sizes(model: Any) -> None:
    sizes = next(one for one in model.graph.initializer if one.name == "axes")
    sizes.CopyFrom(onnx.numpy_helper.from_array(torch.tensor([2, 7]).numpy(), "axes"))
    model.graph.node.insert(0, onnx.helper.make_node("ReduceSum", ["w", "axes"], ["unused"]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (unknown, "operators that are not supported: Frobnicate at 'the activation'"),
        (foreign, "operators that are not supported: com.example.Relu"),
        (
            quantised,
            r"computes with integers \(quantised\): give the floating-point file it was made from",
        ),
        (
            whole_numbers_too,
            r"also takes 'rate' \(int64, a number\): give it with --hold rate=NUMBER",
        ),
        (of_bytes, "takes uint8 at 'x', not floating point"),
        (several_outputs, r"gives 2 outputs: y \(any×2\), r \(any×2\); .* --output-name y"),
        (no_photos, r"takes inputs of shape \(any, 3, any\), which are not photos: give the open"),
        (no_sizes, "constants of .* cannot be computed"),
    ],
)
def test_files_that_cannot_be_used(
    tmp_path: Path, change: Callable[[Any], None], sentence: str
) -> None:
    model: Any = newer_spelling(20)
    model.graph.node[1].name = "the activation"
    change(model)
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=sentence) as raised:
        load_model(str(tmp_path / "net.onnx"))
    assert "\n" not in str(raised.value)


def test_the_scores_are_found_among_several_outputs(tmp_path: Path) -> None:
    model: Any = newer_spelling(20)
    model.graph.output.append(onnx.helper.make_tensor_value_info("r", 1, ["batch", 2, 8, 8]))
    onnx.save(model, tmp_path / "net.onnx")
    assert load_model(str(tmp_path / "net.onnx")).module(torch.randn(1, 3, 9, 9)).shape == (1, 2)


def test_onnx_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = export_onnx(small_network(), tmp_path / "net.onnx", 16, dynamic=False)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModelError, match=r"needs the extra onnx: pip install dmbp\[onnx\]"):
        load_model(str(path))


def constant(name: str, *numbers: int, scalar: bool = False) -> Any:
    array = torch.tensor(numbers[0] if scalar else numbers).numpy()
    return onnx.numpy_helper.from_array(array, name)


def written(path: Path, nodes: list[Any], constants: list[Any], side: int = 8) -> Path:
    """An ONNX file that averages its input, `x`, or what `nodes` make of it, `wide`."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    source = "wide" if any("wide" in node.output for node in nodes) else "x"
    pool = helper.make_node("GlobalAveragePool", [source], ["pooled"])
    nodes = [*nodes, pool, helper.make_node("Flatten", ["pooled"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", kind, [1, 3, side, side])]
    outputs = [helper.make_tensor_value_info("y", kind, [1, 3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    onnx.save(model, path)
    return path


def test_declared_sizes_are_limited(tmp_path: Path) -> None:
    path = written(tmp_path / "a.onnx", [], [], side=10**6)
    assert path.stat().st_size < 200
    with pytest.raises(
        ModelError, match=r"takes inputs of 1×3×1000000×1000000; .* up to 1024×1024"
    ):
        load_model(str(path))


def test_computed_sizes_are_limited(tmp_path: Path) -> None:
    """A file of 200 bytes may ask for any amount of memory, as constants or when it is run."""
    node = onnx.helper.make_node
    large = [constant("s", 10**5, 10**5)]
    numbers = [constant(n, k, scalar=True) for n, k in (("a", 0), ("b", 10**10), ("c", 1))]
    squares = [node("Mul", [f"n{k}"] * 2, [f"n{k + 1}"]) for k in range(60)]
    doubled = [node("Concat", [f"n{k}"] * 2, [f"n{k + 1}"], axis=0) for k in range(60)]
    halves = [node("ConstantOfShape", ["s"], [f"c{k}"]) for k in range(5)]
    cases: list[tuple[list[Any], list[Any], str]] = [
        ([node("ConstantOfShape", ["s"], ["c"])], large, "tensor of 100000×100000 numbers"),
        ([node("Range", ["a", "b", "c"], ["d"])], numbers, "tensor of 10000000000 numbers"),
        (halves, [constant("s", 2**14, 2**13)], "constants have more than 268,435,456 numbers"),
        (
            [node("Tile", ["x", "s"], ["wide"])],
            [constant("s", 1, 1, 10**4, 10**4)],
            "tensor of 1×3×80000×80000 numbers",
        ),
        ([node("Pow", ["b", "b"], ["d"])], numbers, "Pow with an exponent of 10000000000"),
        (squares, [constant("n0", 10**9)], "integers beyond 64 bits"),
        (doubled, [constant("n0", 1, 2)], "shape is computed from 131,072 numbers"),
    ]
    for nodes, constants, sentence in cases:
        with pytest.raises(ModelError, match=sentence):
            load_model(str(written(tmp_path / "a.onnx", nodes, constants)))


@pytest.mark.slow
def test_flipped_bytes_are_one_sentence(tmp_path: Path) -> None:
    """Whatever a damaged file says, loading and running it raises nothing but dmbp's errors."""
    path = export_onnx(small_network(), tmp_path / "net.onnx", 16, dynamic=False)
    whole, draw = path.read_bytes(), random.Random(0)
    for _ in range(20):
        content = bytearray(whole)
        for _ in range(draw.choice((1, 2, 8))):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        with suppress(DMBPError):
            diagnose(ModelSpec(str(path)).load())
