"""
Does the map depend on what was learned?
========================================

The last layer gets random weights. A map that stays the same shows the photo and not what the model
has learned.
"""

import dmbp
from dmbp.data import sample_photos

photo, _ = sample_photos()["cat"]
check = dmbp.sanity(
    photo, target="cat", methods=["gradcam", "dmbp_fast", "guided_backprop"], draws=1
)
print(check.correlations)
figure = check.figure()
