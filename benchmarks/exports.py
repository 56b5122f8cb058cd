"""Whether exported files give the same maps as the module: `python -m benchmarks.exports`.

Exports the real SqueezeNet in several formats, reads each file back as `--model FILE` does, and
explains three photographs with the fast preset. Prints the largest difference between the file's
map and the module's, relative to the map's largest value.
"""

import argparse
import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from tests.real import photographs
from torch import Tensor, nn
from torch.export import Dim

import dmbp
from dmbp.models import load_model

Write = Callable[[nn.Module, Tensor, Path], None]


def program(model: nn.Module, images: Tensor, path: Path) -> None:
    shapes = ({0: Dim.AUTO},) if len(images) > 1 else None
    torch.export.save(torch.export.export(model, (images,), dynamic_shapes=shapes), path)


def traced(model: nn.Module, images: Tensor, path: Path) -> None:
    axes = {"images": {0: "batch"}} if len(images) > 1 else None
    torch.onnx.export(
        model, (images,), path, dynamo=False, input_names=["images"], dynamic_axes=axes
    )


def captured(model: nn.Module, images: Tensor, path: Path) -> None:
    shapes = ({0: Dim.DYNAMIC},)
    torch.onnx.export(model, (images,), path, dynamo=True, dynamic_shapes=shapes, verbose=False)


FORMS: Mapping[tuple[str, str], tuple[Write, str]] = {
    ("`.pt2`", "one image"): (program, "one.pt2"),
    ("`.pt2`", "any number"): (program, "any.pt2"),
    ("`.onnx`, `torch.onnx.export(dynamo=False)`", "one image"): (traced, "one.onnx"),
    ("`.onnx`, `torch.onnx.export(dynamo=False)`", "any number"): (traced, "any.onnx"),
    ("`.onnx`, `torch.onnx.export(dynamo=True)`", "any number"): (captured, "captured.onnx"),
}


def maps_of(model: nn.Module, images: Tensor, classes: list[int]) -> list[Tensor]:
    """Return each photograph's map, computed in a batch of one."""
    explainer = dmbp.DMBP(model, preset="fast")
    return [
        explainer.attribute(image, target=index)
        for image, index in zip(images.split(1), classes, strict=True)
    ]


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    shared = parser.parse_args().shared
    weights = shared / "models" / "squeezenet1_1_imagenet.safetensors"
    module = load_model("squeezenet1_1", weights=weights)
    images, labels = photographs(shared, module.preprocessing, 3)
    classes = [int(label) for label in labels]
    expected = maps_of(module.module, images, classes)
    print("| file | exported for | photo 1 | photo 2 | photo 3 |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for (kind, number), (write, name) in FORMS.items():
            path = Path(folder) / name
            example = images[:1] if number == "one image" else images
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")  # exporters warn about themselves
                write(module.module, example, path)
            found = maps_of(load_model(str(path)).module, images, classes)
            errors = [f"{relative(*pair):.1e}" for pair in zip(found, expected, strict=True)]
            print(f"| {kind} | {number} | {' | '.join(errors)} |", flush=True)


if __name__ == "__main__":
    main()
