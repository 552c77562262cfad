"""Writers of Triton kernels: from a form or a Linear to source text."""
