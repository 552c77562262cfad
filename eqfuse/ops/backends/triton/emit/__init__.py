"""Writers of Triton kernels: from a form, a Linear or a fused op to source text."""
