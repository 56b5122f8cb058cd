"""The engine for CPUs.

`engine.py` turns an execution plan into a program of instructions and runs it forward and back;
`site.py` stores the masks of one activation and updates them.
"""
