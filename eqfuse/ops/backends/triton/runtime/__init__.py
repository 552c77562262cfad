"""Triton kernels compiled, kept on disk, interpreted and launched."""
