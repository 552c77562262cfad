"""Native kernels for CPUs: `emit` writes LLVM IR, `runtime` compiles it and hands it to XLA.

Read `emit` in this order: `contract` (the arithmetic of paths), `layout` (where channels lie),
`kernel` (a pass over the nodes or rows, from `plan`, `rows` and `groups`), `module` (a form as LLVM
IR), `linear_form` with `linear_rows` and `linear_weights` (Linears and their derivatives),
`row_program` and `row_arrays` (several of these as one kernel, block by block); `ir` writes
instructions. In `runtime`: `runtime` (the handler that XLA calls), `threads`, `handlers` (what XLA
calls until kernels are there), `machine` (compile, keep, load); `builder` writes instructions.
"""
