"""
GradCAM at four stages
======================

By default the last stage is found. Earlier ones show finer maps and less of the class.
"""

import dmbp
from dmbp.data import sample_photos
from dmbp.models import load_model

model = load_model("voc160")
photo, _ = sample_photos()["astronaut"]
view = model.preprocessing.view(photo)
images = model.preprocessing.tensor(view)
person = model.classes.index("person")

last = dmbp.methods()["layercam"](model.module)
maps = {"found": last.attribute(images, target=person)}
print("found:", last.used_layer)

sites = dmbp.linearize(model.module, images, target=person).sites
for site in list(sites)[3::6]:
    name = site.name
    layer = dmbp.methods()["layercam"](model.module, layer=name)
    maps[name] = layer.attribute(images, target=person)
figure = dmbp.render.grid(view, maps)
