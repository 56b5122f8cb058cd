"""Triton kernels of the GPU engine, each next to the code that launches it.

Start with `backend.py`, which says what is used where, and `launch.py`, through which every kernel
is compiled and launched. Kernels that run in every iteration:

- `site.py`: a site, that is a gate with its masks and the steps fused into it: the forward pass,
  and the backward pass with an RMSProp step;
- `pooled_site.py`: the same for a ReLU with the max-pooling after it;
- `mask_state.py`: how masks and RMSProp's state are stored in 16 bits, for both;
- `split_convolution.py`: split-K convolutions of few pixels;
- `loss_head.py`: the loss head, which runs between the two passes and computes the terms y⁺ and y⁻
  and the loss's gradients with respect to them, the seeds.

Kernels in float32, before the first iteration and for the read-out:

- `gate_gradients.py`: initial logits, and gradients through learned masks;
- `product.py`: matrix products, such as 1 × 1 convolutions;
- `winograd.py`: 3 × 3 convolutions;
- `transposes.py`: transposes of max-pooling and of other convolutions.

Kernels in 16 bits, for methods that run the model itself:

- `images.py`: max-pooling, and replacing pixels.

`precompile.py` starts compiling the usual kernels while a network is still being captured.
"""
