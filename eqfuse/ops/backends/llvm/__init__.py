"""Native kernels for CPUs: forms and programs as LLVM IR, compiled by llvmlite and called by XLA.

`text` writes instructions, `layout` places arrays and channels, `form`, `rows` and `channels` write
the passes of a form, `linear` those of a Linear, `functions` element-wise functions, `layer` steps
block by block, and `program` a whole program. `machine` compiles, keeps and loads modules, and
`runtime` is the handler that XLA calls.
"""
