"""
Why is this a cat?
==================

The first thing to try: a photo, the built-in model, two classes. Red speaks for the class, blue
against it; the third and fourth picture of a row test that.
"""

import dmbp
from dmbp.data import sample_photos

photo, _ = sample_photos()["collage"]
explanation = dmbp.explain(photo, target=["cat", "person"])
figure = explanation.figure()

# %%
# The same in words, and in numbers: what the score loses without all red pixels, and gains without
# all blue ones.

print(explanation.summary())
print(explanation.worth_for, explanation.worth_against)
