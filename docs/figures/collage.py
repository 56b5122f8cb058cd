"""A cat and an astronaut side by side: what speaks for each, and eight methods.

python docs/figures/collage.py
"""

from pathlib import Path

import dmbp
from dmbp.data import sample_photos

IMAGES = Path(__file__).parent.parent / "images"
METHODS = (
    *("dmbp", "gradcam", "layercam", "lrp_gamma", "smoothgrad", "deeplift", "guided_gradcam"),
    "random",
)

if __name__ == "__main__":
    photo, _ = sample_photos()["collage"]
    dmbp.explain(photo, target=["cat", "person"]).plot(IMAGES / "collage.png")
    dmbp.compare(photo, target="cat", methods=METHODS).plot(IMAGES / "collage-methods.png")
