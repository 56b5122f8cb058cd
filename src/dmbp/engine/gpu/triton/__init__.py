"""Triton kernels of the GPU engine, each next to the code that launches it.

Start with `backend.py`, which says what is used where, and `launch.py`, through which every kernel
is compiled and launched. Kernels that run at every iteration:

- `site.py`: a gate and what is fused into it, forward and back with RMSProp's step;
- `pooled_site.py`: the same for a ReLU with the max-pooling after it;
- `mask_state.py`: how masks and RMSProp's state are stored in 16 bits, for both;
- `split_convolution.py`: split-K convolutions of few pixels;
- `loss_head.py`: terms and seeds between the two passes.

Kernels in float32, before the first iteration and for the read-out:

- `gate_gradients.py`: initial logits, and gradients through learned masks;
- `winograd.py`: 3 × 3 convolutions;
- `transposes.py`: transposes of max-pooling and of other convolutions.

`precompile.py` starts compiling the usual kernels while a network is still being captured.
"""
