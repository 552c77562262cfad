"""JAX primitives, with their rules, batching and lowering, and why each is its own.

A call of `ops.tensor_product` reaches its kernel by this path:

1. `ops._tensor_product` resolves the backend, and promotes both operands to one dtype.
2. `ir.products.tensor_product` describes the product as a `Form`; it is kept for these irreps.
3. `evaluate_rows` joins the leading axes to rows, and marks what all rows share.
4. `forms.evaluate` checks the shapes and binds `form_p`, which `jit` records.
5. A derivative binds `form_p` again, on the form that `Form.jvp` or `Form.transpose` gives.
6. JAX lowers `form_p` by `forms._lower_form`, which `lowering` registers.
7. On a CPU `native.run_form` has `backends.llvm.form.generate` write LLVM IR, and binds `native_p`.
8. On a GPU, `triton.primitive.run_form` asks `triton.form.kernels` for texts, and binds `launch_p`.
9. `llvm.machine` or `triton.compile` compiles the text, or finds it on disk.
10. XLA calls the machine code through its FFI, or launches the kernel on its stream.

The primitives are:

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
