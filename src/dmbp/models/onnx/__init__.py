"""Networks written in ONNX as modules: a table says which torch function each operation is."""
