"""`dmbp.explain_dataset`: explains all items of a dataset, and continues a run that was killed.

run.py       goes through the items in groups, in constant memory
items.py     what an item of a `Dataset` or `DataLoader` is: its input, label and target
folder.py    the results on disk, and what a later run may reuse
"""

from dmbp.workflows.datasets.folder import read_records
from dmbp.workflows.datasets.run import ExplainedItem, explain_dataset

__all__ = ["ExplainedItem", "explain_dataset", "read_records"]
