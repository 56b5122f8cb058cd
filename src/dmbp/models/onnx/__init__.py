"""Runs ONNX files as PyTorch modules.

file.py     loads an .onnx file as a `Classifier`, or says why it cannot be used
graph.py    the file's graph of nodes and constants, and the module that runs it
operators/  what each ONNX operator computes; its docstring shows how to add one
"""
