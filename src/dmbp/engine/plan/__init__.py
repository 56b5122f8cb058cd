"""The execution plan of a linear network, which all engines share.

`ExecutionPlan` (`plan.py`) is built in this order:

1. `rewrites.py` simplifies the frozen graph: batch norm is folded, concatenations are reused, and
   outputs of linear layers that nothing reads are dropped.
2. `operations.py` chooses an operation with a transpose for every step; `convolution.py` has the
   convolutions, and `kernels.py` the few functions that a back end may replace by faster ones.
3. `rows.py` tracks which dimension of every result holds the rows of the batch; `streams.py`
   defines the values that pass between steps: both streams' activations, and the layout of their
   rows.
4. `tail.py` reduces the steps after the last sites to one affine function, and prunes channels that
   the score does not depend on.
"""
