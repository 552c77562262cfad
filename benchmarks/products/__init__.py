"""Products and Linears on a CPU, and the resources of their GPU kernels."""
