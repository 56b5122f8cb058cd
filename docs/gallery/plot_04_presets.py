"""
Tested, fast, and the paper's
=============================

The default asks the model what each place is worth. The preset "fast" shows the streams of the
method as they are, and "paper" what the paper describes.
"""

import dmbp
from dmbp.data import sample_photos
from dmbp.models import load_model

model = load_model("voc160")
photo, _ = sample_photos()["collage"]
view = model.preprocessing.view(photo)
images = model.preprocessing.tensor(view)
cat = model.classes.index("cat")

maps = {
    preset: dmbp.DMBP(model.module, preset=preset).attribute(images, target=cat)
    for preset in ("tested", "fast")
}
maps["paper, 20 iterations"] = dmbp.DMBP(model.module, preset="paper", iterations=20).attribute(
    images, target=cat
)
figure = dmbp.render.grid(view, maps)
