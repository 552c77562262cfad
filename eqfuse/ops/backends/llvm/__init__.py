"""Native kernels for CPUs: forms and programs as LLVM IR, compiled by llvmlite and called by XLA.

`text` writes instructions, `layout` places arrays and channels, `form`, `row_access` and `channels`
write the passes of a form, `linear` those of a Linear, `functions` element-wise functions, `steps`
what else a program does, and `program` programs, whole or block by block of rows. `machine`
compiles, keeps and loads modules, and `runtime` is the handler that XLA calls.
"""
