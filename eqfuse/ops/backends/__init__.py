"""Backends of a form: `xla` anywhere, `llvm` on a CPU, `triton` on a GPU."""
