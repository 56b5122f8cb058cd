"""A `.pt2` file is read as data: ordinary ones open, and code in one is not run."""

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F
from typer.testing import CliRunner

from dmbp.cli import app
from dmbp.errors import ModelError
from dmbp.models import load_model
from dmbp.models.program.file import load_program
from dmbp.models.torchvision_models import import_torchvision
from tests.models.networks import assert_same_map, small_network
from tests.models.program import tampering
from tests.models.program.tampering import Members, Route, edit_program, tamper

models = import_torchvision().models
IMAGES = torch.zeros(2, 3, 16, 16)


def save(model: nn.Module, path: Path, images: Tensor, dynamic: object = None) -> Path:
    torch.export.save(torch.export.export(model, (images,), dynamic_shapes=dynamic), path)
    return path


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with weights, symbolic sizes and guards."""
    dynamic = ({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},)
    path = tmp_path_factory.mktemp("ordinary") / "net.pt2"
    return save(small_network(), path, IMAGES, dynamic)


# ---- files that run code if torch loads them

REFUSED: list[tuple[Route, str]] = [
    (tampering.pickled_weight, r"config\['0.weight'\].use_pickle is true"),
    (tampering.opaque_constant, "holds 'net/data/constants/opaque_obj_0'"),
    (tampering.symbolic_size, r"expr_str holds .*, which is not arithmetic"),
    (tampering.guard, r"guards_code\[\d+\] holds .*, which is not arithmetic"),
    (tampering.guard_of_a_text_input, "inputs.* has the field 'as_string'"),
    (tampering.operation_of_python, "target names the operation 'torch.os.mkdir'"),
    (tampering.operation_with_files, "target names the operation 'torch.ops.aten.from_file"),
    (tampering.name_of_an_input, r"as_tensor.name is .*, which is not a name"),
    (tampering.name_of_a_weight, "parameter_name is .*, which is not a path of modules"),
    (tampering.module_of_a_tree, "in_spec is .* not of type str"),
    (tampering.compiled_library, "holds 'net/data/aotinductor/model/net.so'"),
    (tampering.older_weights, "holds Python objects in 'data/weights/model.pt'"),
    (tampering.outside_the_archive, "holds 'net/../../escaped'"),
]


@pytest.mark.parametrize(("route", "sentence"), REFUSED, ids=[r.__name__ for r, _ in REFUSED])
def test_code_in_a_file_is_not_run(
    route: Route,
    sentence: str,
    ordinary: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # where one of the routes has a module to import
    mark = tmp_path / "mark"
    path = tamper(ordinary, route, mark)
    with pytest.raises(ModelError, match=sentence) as refusal:
        load_model(str(path)).module(IMAGES)
    assert not mark.exists()
    assert str(refusal.value).startswith(f"{path} is not opened, because ")
    assert "--trust-model-file" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_example_inputs_are_never_read(ordinary: Path, tmp_path: Path) -> None:
    """torch would unpickle them, but a network does not need them."""
    mark = tmp_path / "mark"
    path = tamper(ordinary, tampering.pickled_examples, mark)
    expected = load_model(str(ordinary)).module(IMAGES)
    assert torch.equal(load_model(str(path)).module(IMAGES), expected)
    assert not mark.exists()


def test_the_command_line_refuses_or_trusts(ordinary: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = tamper(ordinary, tampering.pickled_weight, mark)
    refused = CliRunner().invoke(app, ["doctor", str(path)])
    assert refused.exit_code == 2
    assert "is not opened" in " ".join(refused.output.split())
    assert not mark.exists()
    trusted = CliRunner().invoke(app, ["doctor", str(path), "--trust-model-file"])
    assert trusted.exit_code == 2  # what was pickled is no weight
    assert mark.exists()


@pytest.mark.parametrize("command", ["explain", "compare", "sanity", "doctor"])
def test_every_command_with_a_model_has_the_option(command: str) -> None:
    assert (
        "--trust-model-file"
        in CliRunner().invoke(app, [command, "--help"], terminal_width=200).output
    )


# ---- files that take all memory or time, and forms that are not known


def program_with(change: Callable[[Any], None]) -> Route:
    return lambda members, _: edit_program(members, change)


def sizes_of_the_input(program: Any) -> Any:
    return program["graph_module"]["graph"]["tensor_values"]["input"]["sizes"]


def set_size(expression: str) -> Route:
    return program_with(
        lambda program: sizes_of_the_input(program)[0]["as_expr"].update(expr_str=expression)
    )


def weight_of_shape(sizes: list[int], strides: list[int]) -> Route:
    def change(config: Any) -> None:
        meta = config["config"]["0.weight"]["tensor_meta"]
        meta["sizes"] = [{"as_int": size} for size in sizes]
        meta["strides"] = [{"as_int": stride} for stride in strides]

    return lambda members, _: tampering.edit(members, tampering.WEIGHTS, change)


def deeply_nested(members: Members, _: Path) -> None:
    tree = "[" * 100_000
    edit_program(
        members,
        lambda program: program["graph_module"]["module_call_graph"][0]["signature"].update(
            out_spec=tree
        ),
    )


@pytest.mark.parametrize(
    ("route", "sentence"),
    [
        (set_size("Pow(Integer(9), Pow(Integer(9), Integer(9)))"), "too large a power"),
        (set_size("2 ** 1000000000"), "too large a power"),
        (set_size("LShift(Integer(1), Integer(1000000000))"), "too large a power"),
        (set_size("(" * 5000), "is not arithmetic"),
        (set_size("s0 if s0 else s0"), "is not arithmetic"),
        (set_size("Symbol('x', commutative=False)"), "is not arithmetic"),
        (set_size("factorial(100000)"), "is not arithmetic"),
        (
            program_with(lambda program: program["range_constraints"].update(
                u999999999999={"min_val": 0, "max_val": None}
            )),
            "is not arithmetic",
        ),
        (weight_of_shape([10**6, 10**6], [10**6, 1]), "gives '0.weight' a shape"),
        (weight_of_shape([10**6, 10**6], [0, 0]), "gives '0.weight' a shape"),
        (weight_of_shape([2, 2], [-1, 1]), "gives '0.weight' an impossible shape"),
        (deeply_nested, "is not JSON"),
        (
            program_with(lambda program: program["graph_module"]["graph"]["nodes"][0].update(
                metadata={"nn_module_stack": "a,\x1b[2J,b"}
            )),
            "which cannot be printed",
        ),
        (program_with(lambda program: program.update(hooks=["x"])), "has the field 'hooks'"),
        (program_with(lambda program: program["schema_version"].update(major=9)), "major is 9"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(
    route: Route, sentence: str, ordinary: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=sentence):
        load_model(str(tamper(ordinary, route, tmp_path / "mark")))


@pytest.mark.parametrize(
    ("name", "compression", "sentence"),
    [
        ("net/extra/zeros", zipfile.ZIP_DEFLATED, "compressed or encrypted"),
        ("net/models/model.json", zipfile.ZIP_STORED, "holds 'models/model.json' twice"),
    ],
)
def test_archives_that_torch_does_not_write(
    name: str, compression: int, sentence: str, ordinary: Path, tmp_path: Path
) -> None:
    path = tamper(ordinary, lambda members, mark: None, tmp_path / "mark")
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a repeated name
        archive.writestr(name, bytes(1000), compression)
    with pytest.raises(ModelError, match=sentence):
        load_model(str(path))


def test_members_that_share_bytes_are_refused(ordinary: Path, tmp_path: Path) -> None:
    """Each of a thousand members could be the same gigabyte of the file."""
    path = tamper(ordinary, lambda members, mark: None, tmp_path / "mark")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("net/data/weights/weight_50", bytes(10_000))
        for number in range(51, 80):
            copy = zipfile.ZipInfo(f"net/data/weights/weight_{number}")
            original = archive.getinfo("net/data/weights/weight_50")
            for field in ("header_offset", "CRC", "compress_size", "file_size"):
                setattr(copy, field, getattr(original, field))
            archive.filelist.append(copy)
    with pytest.raises(ModelError, match="larger than the file"):
        load_model(str(path))


# ---- ordinary files


class AnySize(nn.Module):
    """Computes with the image's size, and has buffers and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.hidden, self.tied = nn.Linear(4, 4), nn.Linear(4, 4)
        self.tied.weight = self.hidden.weight
        self.register_buffer("scale", torch.rand(4))
        self.register_buffer("shift", torch.rand(4), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.norm(self.first(images)), inplace=True)
        if features.shape[-1] > 5:
            features = F.interpolate(features, scale_factor=2.0, mode="bilinear")
        half = features[:, :, : features.shape[2] // 2]
        pooled = torch.cat([half, half], 2).mean((2, 3)) * self.scale
        return self.tied(F.gelu(self.hidden(pooled), approximate="tanh") + self.shift)


def vision_transformer() -> nn.Module:
    model = models.VisionTransformer(32, 16, 2, 2, 32, 64, num_classes=5)
    nn.init.normal_(model.heads.head.weight)  # zeros otherwise
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "side", "dynamic"),
    [
        (lambda: models.resnet50(weights=None), 32, None),
        (vision_transformer, 32, {0: Dim.AUTO}),
        (AnySize, 32, {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}),
    ],
    ids=["ResNet50", "ViT", "dynamic"],
)
def test_an_ordinary_file_is_the_module(
    make: Callable[[], nn.Module], side: int, dynamic: object, tmp_path: Path
) -> None:
    model, images = make().eval(), torch.randn(2, 3, side, side)
    example = images if dynamic else images[:1]
    path = save(model, tmp_path / "net.pt2", example, (dynamic,) if dynamic else None)
    found = load_model(str(path))
    assert torch.equal(found.module(images[:1]), model(images[:1]))
    assert_same_map(found, model, images[:1], 1)


def test_the_program_is_the_one_that_torch_loads(tmp_path: Path) -> None:
    """Also its ranges, and its guards: they decide for which images the program is right."""
    dynamic = ({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},)
    path = save(AnySize().eval(), tmp_path / "net.pt2", torch.randn(2, 3, 32, 32), dynamic)
    found, expected = load_program(path), load_program(path, trust=True)
    assert found.graph_signature == expected.graph_signature
    assert str(found.range_constraints) == str(expected.range_constraints)
    assert found.module().code == expected.module().code
    stacks = [
        [node.meta.get("nn_module_stack") for node in program.graph.nodes]
        for program in (found, expected)
    ]
    assert stacks[0] == stacks[1]
    state, known = found.state_dict, expected.state_dict
    assert [(k, v.shape, v.stride(), v.requires_grad) for k, v in state.items()] == [
        (k, v.shape, v.stride(), v.requires_grad) for k, v in known.items()
    ]
    assert state["tied.weight"].data_ptr() == state["hidden.weight"].data_ptr()
    for program in (found, expected):
        with pytest.raises(AssertionError, match="Guard failed"):
            program.module()(torch.randn(2, 3, 8, 8))


def as_torch_2_7(path: Path) -> None:
    """Rewrite a file in the form of torch 2.6 and 2.7."""
    from torch._export.serde.serialize import serialize

    artifact = serialize(torch.export.load(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("serialized_exported_program.json", artifact.exported_program)
        archive.writestr("serialized_state_dict.pt", artifact.state_dict)
        archive.writestr("serialized_constants.pt", artifact.constants)
        archive.writestr("serialized_example_inputs.pt", artifact.example_inputs)
        archive.writestr("version", "8.2")


def as_torch_2_8(path: Path) -> None:
    """Rewrite a file in the form of torch 2.8, which pickled all weights together."""
    as_torch_2_7(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/models/model.json", members["serialized_exported_program.json"])
        archive.writestr("net/data/weights/model.pt", members["serialized_state_dict.pt"])
        archive.writestr("net/data/constants/model.pt", members["serialized_constants.pt"])
        archive.writestr("net/archive_version", "0")


@pytest.mark.parametrize("rewrite", [as_torch_2_7, as_torch_2_8])
def test_files_of_older_releases(rewrite: Callable[[Path], None], tmp_path: Path) -> None:
    path = save(AnySize().eval(), tmp_path / "net.pt2", IMAGES, ({0: Dim.AUTO},))
    images = torch.randn(3, 3, 16, 16)
    expected = load_model(str(path)).module(images)
    rewrite(path)
    assert torch.equal(load_model(str(path)).module(images), expected)


def test_code_in_the_oldest_form_is_not_run(tmp_path: Path) -> None:
    path = save(small_network(), tmp_path / "net.pt2", IMAGES)
    as_torch_2_7(path)
    mark = tmp_path / "mark"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            evil = tampering.torch_saved({"0.weight": tampering.Payload(mark)})
            archive.writestr(name, evil if name.endswith(".pt") else content)
    with pytest.raises(ModelError, match="holds Python objects in 'serialized_state_dict"):
        load_model(str(path))
    assert not mark.exists()
