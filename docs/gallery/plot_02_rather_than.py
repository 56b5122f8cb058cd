"""
Why a person and not a cat?
===========================

A difference of two scores: evidence that both classes share cancels, red speaks for the first class
and blue for the second.
"""

import dmbp
from dmbp.data import sample_photos

photo, _ = sample_photos()["collage"]
explanation = dmbp.explain(photo, target="person", rather_than="cat")
figure = explanation.figure()
