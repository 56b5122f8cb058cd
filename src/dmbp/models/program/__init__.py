"""Reads `.pt2` files, the programs of `torch.export`, without running code that they may contain.

file.py    opens the archive, reads the weights, and hands torch the checked network
schema.py  the fields that the JSON files of the archive may have
values.py  what may be a name, an operation, a symbolic size, a guard or a tree of inputs
"""
