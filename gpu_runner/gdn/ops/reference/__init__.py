"""The hand path: every operator in plain PyTorch, with the rounding points of the kernels."""
