"""A traced function as steps of native kernels."""
