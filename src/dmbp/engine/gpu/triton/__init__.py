"""Triton kernels of the GPU engine, each beside the code that launches it."""
