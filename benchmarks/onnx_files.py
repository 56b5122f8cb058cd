"""Whether ONNX files give the same maps as the module: `python -m benchmarks.onnx_files`.

Exports networks with random weights with both of torch's exporters, for one image and for any
number, reads the files back, and compares outputs and the maps that DMBP learns in ten iterations
with the module's. Each difference is the largest one, relative to the largest value. Everything
runs in double precision: in single precision, an exporter that folds batch norm into weights rounds
them, and a gate that is almost zero may open. `--json FILE` stores results and continues where it
stopped; `--write` copies the table from such a file into docs/benchmarks/onnx-files.md.
"""

import argparse
import contextlib
import gc
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

import dmbp
from benchmarks.sweep import randomise, timm_model, torchvision_model
from dmbp.errors import DMBPError
from dmbp.models.onnx.file import read_classifier

ITERATIONS = 10

NETWORKS = (
    *("squeezenet1_1", "resnet18", "densenet121", "googlenet", "inception_v3", "mobilenet_v2"),
    *("mobilenet_v3_small", "efficientnet_b0", "regnet_y_400mf", "shufflenet_v2_x0_5"),
    *("convnext_tiny", "vit_b_16", "swin_t", "swin_v2_t", "maxvit_t"),
    *(
        "timm:vit_tiny_patch16_224",
        "timm:convnextv2_atto",
        "timm:resnetv2_50",
        "timm:mobilevit_xxs",
    ),
    *("timm:mixer_s32_224", "timm:levit_128s", "timm:poolformer_s12", "timm:coatnet_nano_rw_224"),
    *("timm:efficientvit_b0",),
)

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks" / "onnx-files.md"
BEGIN, END = "<!-- onnx_files -->\n", "<!-- /onnx_files -->"
HEAD = "| network | exporter | exported for | output | map |\n| --- | --- | --- | --- | --- |"

Row = dict[str, Any]
Export = Callable[[nn.Module, Tensor, Path], None]


def traced(model: nn.Module, images: Tensor, path: Path, **settings: Any) -> None:
    """Export with the older exporter, which traces one run of the model."""
    settings = {"opset_version": 17, "input_names": ["images"], **settings}
    torch.onnx.export(model, (images[:1],), path, dynamo=False, **settings)


def exported(model: nn.Module, images: Tensor, path: Path, **settings: Any) -> None:
    """Export with the newer exporter, which uses `torch.export`."""
    images = images if "dynamic_shapes" in settings else images[:1]
    torch.onnx.export(model, (images,), path, dynamo=True, verbose=False, **settings)


ANY_NUMBER: Mapping[str, Any] = {"dynamic_axes": {"images": {0: "batch"}}}

FORMS: Mapping[tuple[str, str], Export] = {
    ("dynamo=False, opset 17", "any number"): lambda *a: traced(*a, **ANY_NUMBER),
    ("dynamo=False, opset 17", "one image"): traced,
    ("dynamo=False, opset 17, no folding", "any number"): lambda *a: traced(
        *a, do_constant_folding=False, **ANY_NUMBER
    ),
    ("dynamo=True", "any number"): lambda *a: exported(*a, dynamic_shapes=({0: Dim.DYNAMIC},)),
    ("dynamo=True", "one image"): exported,
    ("dynamo=True, opset 23", "one image"): lambda *a: exported(*a, opset_version=23),
}


def network(name: str) -> tuple[nn.Module, Tensor]:
    """Return a network, with the same random weights every time, and two images."""
    torch.manual_seed(0)
    source, _, own = name.rpartition(":")
    model, image = (timm_model if source else torchvision_model)(own)
    randomise(model)
    return model.double(), torch.cat([image, image.flip(-1)]).double()


def measure(name: str, form: tuple[str, str]) -> Row:
    """Return the differences between a file and its module, or why the file is refused."""
    model, images = network(name)
    row: Row = {"name": name, "exporter": form[0], "batch": form[1]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        try:
            quietly(lambda: FORMS[form](model, images, path))
        except Exception as error:
            return row | {"refusal": f"not exported: {str(error).strip().splitlines()[0][:80]}"}
        try:
            found = answers(read_classifier(path).module, images)
            output, maps = (relative(*pair) for pair in zip(found, expected(name), strict=True))
            return row | {"output": output, "map": maps}
        except DMBPError as refusal:
            return row | {"refusal": str(refusal).replace(f"{folder}/", "")}


def quietly(export: Callable[[], None]) -> None:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        export()


@cache
def expected(name: str) -> tuple[Tensor, Tensor]:
    """Return the module's own outputs and map."""
    return answers(*network(name))


def answers(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        outputs = model(images)
    return outputs, dmbp.DMBP(model, iterations=ITERATIONS).attribute(images[:1], target=0)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def rows(names: list[str], exporter: str, known: list[Row]) -> Iterator[Row]:
    """Measure the rows that are not known yet, one export form after the other."""
    done = {(row["name"], row["exporter"], row["batch"]) for row in known}
    for form in (form for form in FORMS if form[0].startswith(exporter)):
        for name in names:
            if (name, *form) not in done:
                yield measure(name, form)
                gc.collect()


def line(row: Row) -> str:
    found = row["refusal"] + " |" if "refusal" in row else f"{row['output']:.0e} | {row['map']:.0e}"
    return f"| {row['name']} | {row['exporter']} | {row['batch']} | {found} |"


def table(found: list[Row]) -> str:
    order = [(name, *form) for name in NETWORKS for form in FORMS]
    keyed = {(row["name"], row["exporter"], row["batch"]): row for row in found}
    return "\n".join([HEAD, *(line(keyed[key]) for key in order if key in keyed)])


def write(found: list[Row]) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{table(found)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--exporter", default="", help="only exporters whose name begins with this")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the stored results into docs/benchmarks/onnx-files.md",
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    kept = options.json is not None and options.json.exists()
    found: list[Row] = json.loads(options.json.read_text()) if kept else []
    for row in () if options.write else rows(options.networks, options.exporter, found):
        print(line(row), flush=True)
        found.append(row)
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1))
    if options.write:
        write(found)


if __name__ == "__main__":
    main()
