"""Score the default model on the PASCAL VOC2012 val images, class by class.

    python scripts/evaluate_default.py --weights src/dmbp/models/weights/voc160.safetensors

Prints average precision by class and their mean (mAP). Logits are averaged over each image and its
mirror image. If an image shows only difficult instances of a class, that class is left out for it.
"""

import argparse
import hashlib
from pathlib import Path

from voc160 import average_precisions, predict, read_images, read_labels
from weights import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description="mAP of the default model on VOC2012 val.")
    parser.add_argument("--weights", type=Path, required=True, help="a .safetensors file")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="voc160 folder")
    arguments = parser.parse_args()

    names, images = read_images(arguments.data, "val")
    labels = read_labels(arguments.data, names)
    logits = predict(load_model(arguments.weights), images)

    precisions = average_precisions(logits, labels)
    for name, precision in precisions.items():
        print(f"{name:12s} {precision:.3f}")
    print(f"{'mAP':12s} {sum(precisions.values()) / len(precisions):.4f}  ({len(names)} images)")
    print(f"sha256       {hashlib.sha256(arguments.weights.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
