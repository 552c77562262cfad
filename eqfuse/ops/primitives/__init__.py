"""JAX primitives, with their rules, batching and lowering, and why each is its own.

- `forms.form_p`: a product and its derivatives of every order. It reads and sums rows of
  nodes.
- `forms.linear_form_p`: a Linear and its derivatives. It is multilinear by the rules of `form_p`,
  but has operands without rows, the matrices: `vmap` joins rows, and keeps one set of matrices.
- `forms.activation_p`: the only function that is not multilinear. Its derivatives are forms and
  itself at other orders, so that a traced gate is one native kernel with what is around it.
- `layer.fused_p`: product, Linear, skip and gate as one kernel, and its derivatives of every order,
  each a kernel of the whole.
- `native.native_p`: what is left of each when it is lowered for a CPU: a call of machine code.
- `backends.triton.primitive.launch_p`: the same for a GPU, where a kernel has a grid and may write
  over its inputs; `compile_ahead` finds all kernels of a function by it.
- `transforms.sequence.sequence_p`: any function, written as one kernel of a whole network.
"""
