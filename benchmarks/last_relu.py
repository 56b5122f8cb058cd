"""DMBP with and without masks at a network's last ReLU: `python -m benchmarks.last_relu`.

The real SqueezeNet ends in a ReLU followed by an average over positions. Prints both terms and the
insertion score of DMBP with masks at all sites, and only at the sites before that ReLU.
"""

import argparse
from pathlib import Path

from tests.real import photographs

from dmbp.attribution.dmbp import DMBP
from dmbp.metrics import insertion
from dmbp.models import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--photos", type=int, default=24)
    options = parser.parse_args()
    weights = options.shared / "models" / "squeezenet1_1_imagenet.safetensors"
    classifier = load_model("squeezenet1_1", weights=weights)
    inputs, target = photographs(options.shared, classifier.preprocessing, options.photos)
    for sites in (None, "features*"):
        found = DMBP(classifier.module, preset="fast", sites=sites).explain(inputs, target=target)
        score = insertion(classifier.module, inputs, target, found.attribution).mean()
        print(
            f"{sites or 'all sites'}: insertion {score:.3f}, median y⁺ "
            f"{found.positive_output.median():.1f}, y⁻ {found.negative_output.median():.4f}"
        )


if __name__ == "__main__":
    main()
