"""Forms as native code for CPUs, compiled by the LLVM that Numba brings and called by XLA.

Read in this order: `contract` (the arithmetic of paths), `layout` (where channels lie), `kernel`
(a pass over the nodes or rows, from `plan`, `rows` and `groups`), `module` (a form as LLVM IR),
`runtime` (the handler that XLA calls), `threads`, `handlers` (what XLA calls until kernels are
there), `machine` (compile, keep, load), `run` (inside JAX). `ir` writes LLVM IR for kernels,
`builder` for the runtime. `mixing`, with `mix_rows` and `mix_weights`, writes the modules of
Linears and of their derivatives for the same runtime.
`chain` and `chain_arrays` make products, mixings and their derivatives one kernel, block by block.
"""
