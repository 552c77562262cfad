"""Native kernels compiled, kept on disk, and called by XLA."""
