"""Hash all results, to show that a change to the code changed no number.

    python -m benchmarks.fingerprints --weights FILE before.json PHOTO...     # on one commit
    python -m benchmarks.fingerprints --weights FILE after.json PHOTO...      # on another
    python -m benchmarks.fingerprints --compare before.json after.json

Runs every method, both presets of DMBP and all metrics on the built-in model and, with the
weights of `resnet50-keras`, on ResNet50; each result is a hash of its bytes. The script uses only
public names, so it also runs on old commits. On a GPU, where the order of additions may differ
between processes, `--tensors` also stores the tensors, and `--compare` prints how far apart they
are.
"""

import argparse
import hashlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import dmbp
from dmbp.models import load_model

SETTINGS: dict[str, dict[str, Any]] = {
    "rise": {"masks": 64},
    "lpr": {"iterations": 3},
    "scorecam": {"channels": 8},
    "kernel_shap": {"samples": 64},
    **{name: {"iterations": 5} for name in ("dmbp", "dmbp_paper", "dmbp_posneg", "dmbp_pos")},
}
"""Settings that make slow methods fast enough."""

FIELDS = (
    *("attribution", "positive", "negative", "positive_map", "negative_map"),
    *("output", "positive_output", "negative_output", "nuisance_output"),
)


def results(name: str, options: argparse.Namespace) -> Iterator[tuple[str, Tensor]]:
    """Yield every result on one model, with its name."""
    weights = options.weights if name != "voc160" else None
    classifier = load_model(name, weights=weights)
    model = classifier.module.eval().to(options.device)
    photos = [Image.open(path).convert("RGB") for path in options.photos]
    seen = [
        classifier.preprocessing.tensor(classifier.preprocessing.view(photo)) for photo in photos
    ]
    inputs = torch.stack([image.squeeze(0) for image in seen]).to(options.device)
    with torch.no_grad():
        target = model(inputs).argmax(1).tolist()
    for preset in ("fast", "paper"):
        explainer = dmbp.DMBP(model, preset=preset, iterations=options.iterations)
        for call in range(options.calls):
            found = explainer.explain(inputs, target=target)
            for field in FIELDS:
                yield f"{name}/{preset}/call {call}/{field}", getattr(found, field)
            yield f"{name}/{preset}/call {call}/history", found.history.positive
    maps = inputs
    for method, make in dmbp.methods().items():
        try:
            maps = make(model, **SETTINGS.get(method, {})).attribute(inputs, target=target)
        except dmbp.DMBPError:  # attention methods need attention
            continue
        yield f"{name}/{method}", maps
        if method == "dmbp":
            yield from scores(name, model, inputs, target, maps)


def scores(
    name: str, model: Any, inputs: Tensor, target: list[int], maps: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield every metric of one set of maps, with its name."""
    metrics = dmbp.metrics
    others = [[(index + 1) % 20, (index + 2) % 20] for index in target]
    boxes = [[(10, 10, 90, 90)]] * len(inputs)
    gradient = dmbp.methods()["gradient"]
    yield f"{name}/insertion", metrics.insertion(model, inputs, target, maps)
    yield f"{name}/deletion", metrics.deletion(model, inputs, target, maps)
    yield f"{name}/cIM", metrics.complementary_insertion(model, inputs, others, maps)
    yield f"{name}/pointing game", metrics.pointing_game(maps, boxes)
    yield f"{name}/sanity", metrics.reinitialisation(gradient, model, inputs, target)


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def compare(before: Path, after: Path) -> None:
    """Print which results differ and, where tensors are stored, by how much."""
    one, other = (json.loads(path.read_text()) for path in (before, after))
    different = [key for key in one | other if one.get(key) != other.get(key)]
    print(f"{len(one)} and {len(other)} results, {len(different)} different")
    stored = [path.with_suffix(".safetensors") for path in (before, after)]
    tensors = [load_file(path) for path in stored] if all(p.exists() for p in stored) else None
    for key in different:
        if tensors is None or not all(key in part for part in tensors):
            print(f"  {key}")
            continue
        a, b = (part[key].double().flatten() for part in tensors)
        error = float((a - b).norm() / a.norm().clamp(min=1e-300))
        print(f"  {key}: relative difference {error:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", type=Path, help="weights of resnet50-keras")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--iterations", type=int, default=12, help="iterations of both presets")
    parser.add_argument("--calls", type=int, default=1, help="a GPU replays from the third on")
    parser.add_argument("--tensors", action="store_true", help="also store the tensors")
    parser.add_argument("--compare", action="store_true", help="compare two files")
    parser.add_argument("file", type=Path)
    parser.add_argument("photos", type=Path, nargs="+", help="photos, or the other file")
    options = parser.parse_args()
    if options.compare:
        compare(options.file, options.photos[0])
        return
    warnings.simplefilter("ignore")
    models = ["voc160", *(["resnet50-keras"] if options.weights else [])]
    found = {key: value.cpu() for name in models for key, value in results(name, options)}
    options.file.write_text(json.dumps({key: digest(value) for key, value in found.items()}))
    if options.tensors:
        tensors = {key: value.contiguous().clone() for key, value in found.items()}
        save_file(tensors, options.file.with_suffix(".safetensors"))
    print(f"{len(found)} results → {options.file}")


if __name__ == "__main__":
    main()
