"""Writers of LLVM IR: from a form, a Linear or a sequence of them to a module."""
