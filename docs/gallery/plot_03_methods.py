"""
Five methods side by side
=========================

The number above a map is its insertion score: the area under the class's probability while the
strongest pixels are put into a blurred photo. Random order is what every method should beat.
"""

import dmbp
from dmbp.data import sample_photos

photo, _ = sample_photos()["collage"]
methods = ["dmbp", "gradcam", "lrp_gamma", "gradient", "random"]
comparison = dmbp.compare(photo, target="cat", methods=methods)
figure = comparison.figure()

# %%
# The curves, and the photo as it fills up with each method's strongest pixels:

curves = comparison.insertion_figure()
