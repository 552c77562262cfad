"""Make `eqfuse/ops/backends/llvm/runtime.ll` of the C beside it, for any 64-bit machine.

    python scripts/runtime_ir.py [CLANG]

Clang is of LLVM 19, whose text the oldest llvmlite that eqfuse takes reads. XLA's header is that of
the installed jaxlib, which must be the oldest that eqfuse takes.
"""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import jax

SOURCE = Path(__file__).parents[1] / "eqfuse/ops/backends/llvm/runtime.c"
OPTIONS = """
-std=gnu11 -O2 -fPIC -fno-strict-aliasing -fno-asynchronous-unwind-tables -fno-stack-protector
-Wall -Wextra -Werror
"""
LEFT_OUT = re.compile(
    r"^(target |source_filename|; (ModuleID|Function)|attributes|!)|@llvm\.lifetime\."
)
"""What names this machine or this clang, and hints that versions of LLVM write otherwise."""


def main(clang: str = "clang-19"):
    command = [clang, *OPTIONS.split(), "-S", "-emit-llvm", "-I", jax.ffi.include_dir()]
    command += ["-o", "-", SOURCE]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = "".join(line for line in text.splitlines(keepends=True) if not LEFT_OUT.search(line))
    text = re.sub(r" nocapture| #\d+|, !llvm\.loop !\d+", "", text)
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    head = f"; made of runtime.c by scripts/runtime_ir.py, sha256 {digest}\n"
    SOURCE.with_suffix(".ll").write_text(head + text.lstrip())


if __name__ == "__main__":
    main(*sys.argv[1:])
