"""The engine for CPUs.

`engine.py` turns an execution plan into a program of instructions, run forward and backward;
`site.py` stores the masks of one activation and updates them.
"""
