"""The engine for CUDA GPUs.

What happens, in order:

1. `engine/plan` turns a linear network into an execution plan: affine steps and gates in order.
2. `engine.py` turns the plan into a program. `fusion.py` decides what each gate's kernel computes
   besides the gate, and `half_precision.py` casts steps and scales them into float16's range.
3. The back end makes the sites and the loss head: `triton/` in fused kernels, `torch_backend.py`
   in plain PyTorch, which is slower and easier to read.
4. `program.py` runs an iteration: all instructions forward on both streams, the loss head, all
   instructions in reverse with RMSProp's step at every site. Both share the tensors of
   `learning_state.py`.
5. The first iteration runs eagerly. It is then captured as a CUDA graph, on several CUDA streams if
   the network branches (`lanes.py`), and every later iteration replays that graph.
"""
