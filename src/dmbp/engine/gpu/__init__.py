"""The engine for CUDA GPUs.

Masks are learned at sites: gates (ReLUs, say) whose output is multiplied by a mask in each of two
passes, the positive and the negative stream. An iteration is prepared and run as follows:

1. `engine/plan` turns a linear network into an execution plan: affine steps and gates in order.
2. `engine.py` turns the plan into a program. `fusion.py` decides what each gate's kernel computes
   besides the gate, and `half_precision.py` casts steps and scales them into float16's range.
3. The back end makes the sites and the loss head, which computes the terms y⁺ and y⁻ and the seeds,
   the loss's gradients with respect to them: `triton/` in fused kernels, `torch_backend.py` in
   plain PyTorch, which is slower and easier to read.
4. `program.py` runs an iteration: all instructions forward on both streams, the loss head, then all
   instructions in reverse with an RMSProp step at every site. Sites and loss head share the tensors
   of `learning_state.py`.
5. The first iteration runs eagerly. It is then captured as a CUDA graph, and every later iteration
   replays that graph. If the network branches, the graph runs branches side by side on lanes, CUDA
   streams that are called so to tell them from the positive and negative stream (`lanes.py`).
"""
