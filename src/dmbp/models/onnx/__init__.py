"""ONNX files as PyTorch modules.

file.py     an .onnx file as a `Classifier`; refuses a file that cannot be used
graph.py    the file's graph of nodes and constants, and the module that runs it
operators/  what each ONNX operator computes; its docstring shows how to add one
"""
