"""A shared library of kernels, for programs that run without Python: typed handlers of XLA's FFI.

It needs libc and libm only. Each kernel is in it for several levels of x86-64, of which the first
call takes the best that the processor has; threads are XLA's, at most OMP_NUM_THREADS. Its public
symbols are the handlers, named as programs call them, and `eqfuse_kernels`, an array of name and
handler that ends with zeros.

    >>> import pathlib, tempfile
    >>> x = e3nn.IrrepsArray("1o", jnp.ones((8, 3)))
    >>> with ops.shared_library.recording("_mine") as texts:
    ...     function = lambda x: ops.tensor_product(x, x, backend="llvm").array
    ...     program = jax.jit(function).lower(x)  # calls what the library has
    >>> kernels = {name: ops.shared_library.compiled(name, text) for name, text in texts.items()}
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "kernels.so"
    >>> ops.shared_library.build(kernels, file)
    >>> len(kernels), file.exists()
    (1, True)
"""

import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm.layout import Machine
from eqfuse.ops.backends.llvm.text import with_handler

_NARROW, _WIDE, _NEON = Machine(32, 16), Machine(64, 32), Machine(16, 32)

LEVELS = {
    "x86_64": {"x86-64": _NARROW, "x86-64-v3": _NARROW, "x86-64-v4": _WIDE},
    "aarch64": {"generic": _NEON},
}
"""LLVM's names of the processors for which a library of an architecture is compiled, and the
machine for which its kernels are written, whatever the machine that writes them."""


def recording(suffix: str):
    """Return a context in which kernels are recorded, see `machine.recording`, for `build`."""
    levels = LEVELS.get(platform.machine(), {"": _NARROW})
    return machine.recording(tuple(levels.values()), suffix)


def _handlers(names, levels: int) -> str:
    """Return the LLVM IR of the handlers that XLA calls, which choose the level."""
    here, table = machine.RUNTIME.parent, []
    one = "define internal i64 @best() {\n  ret i64 0\n}\n"
    parts = [(here / "levels.ll").read_text()]
    parts.append((here / "levels_x86_64.ll").read_text() if levels > 1 else one)
    for k, name in enumerate(names):
        slots = ", ".join(f"ptr @{name}_{n}" for n in range(levels))
        parts += [f"declare ptr @{name}_{n}(ptr)" for n in range(levels)]
        parts.append(
            f"@slots{k} = internal constant [{levels} x ptr] [{slots}]\n"
            f'@name{k} = internal constant [{len(name) + 1} x i8] c"{name}\\00"\n'
            f"define ptr @{name}(ptr %frame) {{\n  %level = call i64 @find()\n"
            f"  %slot = getelementptr ptr, ptr @slots{k}, i64 %level\n"
            "  %kernel = load ptr, ptr %slot\n"
            "  %r = call ptr %kernel(ptr %frame)\n  ret ptr %r\n}"
        )
        table += [f"ptr @name{k}", f"ptr @{name}"]
    table += ["ptr null", "ptr null"]
    parts.append(f"@eqfuse_kernels = constant [{len(table)} x ptr] [{', '.join(table)}]")
    return "\n".join(parts) + "\n"


def unavailable() -> str:
    """Return why no library can be written here, or ""."""
    if reason := machine.unavailable():
        return reason
    if sys.platform != "linux" or platform.machine() not in LEVELS:
        here = f"{sys.platform} {platform.machine()}"
        return f"libraries of kernels are written on Linux, x86_64 or aarch64, not on {here}"
    if not _linker():
        return "linking needs ld or ld.lld, and neither is installed; install binutils"
    return ""


def _linker() -> str | None:
    return shutil.which("ld") or shutil.which("ld.lld")


def _libraries() -> list[str]:
    """Return the files of this process's libc and libm, by whose names a library asks for them."""
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    names = {line.split(maxsplit=5)[-1] for line in maps}
    known = re.compile(r"/(lib[cm]\.so|lib[cm]-2|ld-musl)")  # musl's libc has libm in it
    if found := sorted(name for name in names if known.search(name)):
        return found
    raise RuntimeError("the libc of this process is not in /proc/self/maps")


def compiled(name: str, texts: tuple[str, ...]) -> list[bytes]:
    """Return the object code of a kernel that `machine.recording` recorded, for each level.

    Args:
      name: of its handler.
      texts: its LLVM IR for each level of this architecture.
    """
    levels = LEVELS[platform.machine()]
    texts = [with_handler(text, f"{name}_{n}") for n, text in enumerate(texts)]
    return [_compiled(cpu, text) for cpu, text in zip(levels, texts, strict=True)]


def _compiled(cpu: str, text: str) -> bytes:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, opt=2, reloc="pic", jit=False
    )
    return machine.object_code(text, target)


def build(kernels: dict[str, list[bytes]], file: pathlib.Path) -> None:
    """Write a shared library of kernels.

    Args:
      kernels: what `compiled` returns for each, by the name of its handler.
      file: to write.
    Raises:
      RuntimeError: no library can be written here, or the linker failed.
    """
    if reason := unavailable():
        raise RuntimeError(reason)
    levels = [*LEVELS[platform.machine()]]
    common = machine.RUNTIME.read_text(), _handlers(kernels, len(levels))
    codes = [_compiled(levels[0], text) for text in common]
    codes += [kernel[n] for n in range(len(levels)) for kernel in kernels.values()]
    with tempfile.TemporaryDirectory() as folder:
        folder, objects = pathlib.Path(folder), []
        for code in codes:
            objects.append(folder / f"{len(objects)}.o")
            objects[-1].write_bytes(code)
        exported = folder / "exported"
        names = "; ".join([*kernels, "eqfuse_kernels"])
        exported.write_text(f"{{ global: {names}; local: *; }};")
        command = [_linker(), "-shared", "-Bsymbolic", "-soname", file.name, "-z", "noexecstack"]
        command += ["-z", "defs", "--build-id=none", "--version-script", exported, "-o", file]
        done = subprocess.run([*command, *objects, *_libraries()], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{command[0]} did not link the kernels: {done.stderr.strip()}")
