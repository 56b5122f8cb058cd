"""A fast forward pass of a captured model, for methods that run it on many images.

- `graph.py` copies the captured graph, folds batch norms and fuses what follows a convolution;
- `convolution.py` holds the fused convolutions of oneDNN (CPU) and cuDNN (GPU);
- `forward_pass.py` runs the result in chunks, and compares it with the model.
"""
