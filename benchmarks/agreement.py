"""What half precision changes: `python -m benchmarks.agreement` (needs a GPU).

Learns masks for real photographs with the real ResNet50 and the paper's settings twice: with the
autograd engine in single precision, and with the GPU engine in its default precision or in
`--precision`. Prints the correlation between the two sets of masks (at open gates) and of pixel
attributions, and both insertion scores. Batches that leave the precision's range are counted, not
learned again.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from tests.real import photographs, resnet50
from torch import Tensor

from dmbp.decompose import PRESETS
from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import PRECISIONS, AutogradEngine, Engine, engine_for, plan_for
from dmbp.linear import Linearizer, LinearNetwork
from dmbp.linear.lines import ElementwiseLine
from dmbp.metrics import insertion
from dmbp.precision import full_precision


def masks(engine: Engine, net: LinearNetwork) -> list[Tensor]:
    """Return the masks at each row's open gates."""
    steps = [
        s
        for s in net.frozen.steps
        if s.site is not None and isinstance(s.function, ElementwiseLine)
    ]
    gates = {s.site.name: s.function.slope for s in steps}  # pyright: ignore
    logits = engine.logits
    return [
        torch.cat([torch.sigmoid(logits[name][row][gates[name][row]]) for name in gates])
        for row in range(len(net.inputs))
    ]


def correlation(one: Tensor, other: Tensor) -> float:
    both = torch.stack([one.flatten(), other.flatten()]).detach().double()
    return float(torch.corrcoef(both)[0, 1])


@full_precision()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--photos", type=int, default=50)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--preset", default="paper", choices=PRESETS)
    parser.add_argument("--precision", default="auto", choices=PRECISIONS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings = PRESETS[options.preset]
    classifier = resnet50(options.shared)
    model = classifier.module.to(options.device)
    inputs, target = photographs(options.shared, classifier.preprocessing, options.photos)
    inputs = inputs.to(options.device)
    linearizer = Linearizer(model)
    of_masks: list[float] = []
    of_maps: list[float] = []
    in_range: list[bool] = []
    maps: dict[str, list[Tensor]] = {"reference": [], "half": []}
    for images, classes in zip(
        inputs.split(options.batch), target.split(options.batch), strict=True
    ):
        net = linearizer.linearize(images, target=classes.tolist())
        plan = plan_for(net)
        logits = initial_logits(plan)
        learning = {"loss": OBJECTIVES["all"], "learning_rate": settings.learning_rate}
        reference = AutogradEngine(plan, logits, **learning)
        reference.learn(settings.iterations)
        half = engine_for(plan, logits, **learning, precision=options.precision)
        past = half.learn(settings.iterations)
        for one, other in zip(masks(half, net), masks(reference, net), strict=True):
            of_masks.append(correlation(one, other))
        for name, engine in (("reference", reference), ("half", half)):
            found = engine.readout()
            maps[name].append((found.positive_map + found.negative_map) * images)
        in_range.append(half.is_in_range(past))
        for one, other in zip(maps["half"][-1], maps["reference"][-1], strict=True):
            of_maps.append(correlation(one, other))
    scores = {
        name: insertion(model, inputs, target.tolist(), torch.cat(found), activation="softmax")
        for name, found in maps.items()
    }
    result = {
        "masks": {"mean": sum(of_masks) / len(of_masks), "least": min(of_masks), "all": of_masks},
        "maps": {"mean": sum(of_maps) / len(of_maps), "least": min(of_maps), "all": of_maps},
        "IM": {name: float(found.mean()) for name, found in scores.items()},
    }
    for name in ("masks", "maps"):
        print(f"correlation of {name}: mean {result[name]['mean']:.6f}, "
              f"least {result[name]['least']:.6f}")  # fmt: skip
    print(
        f"IM of {len(inputs)} photos: " + ", ".join(f"{k} {v:.4f}" for k, v in result["IM"].items())
    )
    print(f"within the range of that precision: {sum(in_range)} of {len(in_range)} batches")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    sys.exit(main())
