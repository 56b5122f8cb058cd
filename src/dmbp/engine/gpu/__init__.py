"""The engine for CUDA GPUs."""
