"""Functions that do the work of the commands and need no command line.

`prediction` loads a model and runs it on a photo, which the others start from. `explain`, `compare`
and `sanity` do what the commands of these names do; `doctor` shows what `examination` finds out
about a model.
"""
