"""Native kernels for CPUs: forms and programs as LLVM IR, compiled by llvmlite and called by XLA.

`text` writes instructions, `layout` places arrays and channels, `form`, `rows` and `channels` write
the passes of a form, `linear` those of a Linear, `functions` element-wise functions, `layer` several
of these block by block, and `program` a whole program. `machine` compiles, keeps and loads modules;
`runtime` is the handler that XLA calls.
"""
