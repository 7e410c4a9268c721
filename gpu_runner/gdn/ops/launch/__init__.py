"""The host side of the Triton realizations: buffers, grids, tiles. Imports no Triton: `modules` loads the kernels."""
