"""Functions that do the work of the commands and of `import dmbp`.

api.py               `dmbp.explain`, `compare`, `sanity` and `doctor`, which the commands call
sources.py           what a user gives: a photo, a model and a target in any form
prediction.py        loads a model and runs it on a photo, which the others start from
input_shape.py       what a model takes, and how numbers fit it
explained_target.py  what is explained, with its words for pictures and files
explain.py           explains the inputs of a command, and writes the files of each
explanation.py       `Explanation`, the result for one input; `explanations.py` for several
arrays.py            inputs that are no photos
removal.py           what the model says without the strongest pixels
compare.py           runs several methods, and scores their maps
sanity.py            maps before and after the last layer is re-initialised
boxes.py             the boxes that a detector finds
doctor.py            shows what `examination.py` finds out about a model
"""
