"""A shared library of kernels, for programs that run without Python: typed handlers of XLA's FFI.

It needs libc only. Each kernel is in it for several levels of x86-64, of which the first call takes
the best that the processor has; threads are XLA's, at most OMP_NUM_THREADS. Its public symbols are
the handlers, named as programs call them, and `eqfuse_kernels`, an array of name and handler that
ends with zeros.
"""

import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

from eqfuse.ops.backends.llvm.layout import DEFAULT_CACHES, PARTS, Machine
from eqfuse.ops.backends.llvm.machine import API_VERSIONS
from eqfuse.ops.backends.llvm.runtime import Runtime

TARGET = Machine(32, 16, *DEFAULT_CACHES, processors=PARTS)
"""The machine for which kernels of a library are written, whatever the machine that writes them."""

LEVELS = {"x86_64": ("x86-64", "x86-64-v3", "x86-64-v4"), "aarch64": ("generic",)}
"""LLVM's names of the processors for which a library of an architecture is compiled."""

# bits of cpuid: FMA, MOVBE, OSXSAVE, AVX, F16C; LZCNT; BMI1, AVX2, BMI2; AVX512 F, DQ, CD, BW, VL
_LEAF1, _LEAF8, _V3, _V4 = 0x38401000, 0x20, 0x128, 0xD0030000
_SAVED3, _SAVED4 = 0x06, 0xE6  # registers that the system keeps: those of AVX, and of AVX-512

_LEVEL_OF_X86 = f"""
%words = type {{i32, i32, i32, i32}}
define internal %words @cpuid(i32 %leaf) {{
  %r = call %words asm sideeffect "cpuid", "={{ax}},={{bx}},={{cx}},={{dx}},{{ax}},{{cx}}"(
    i32 %leaf, i32 0)
  ret %words %r
}}
define internal i1 @has(i32 %value, i32 %bits) {{
  %masked = and i32 %value, %bits
  %all = icmp eq i32 %masked, %bits
  ret i1 %all
}}
define internal i64 @best() {{
  %one = call %words @cpuid(i32 1)
  %seven = call %words @cpuid(i32 7)
  %eight = call %words @cpuid(i32 -2147483647)
  %c1 = extractvalue %words %one, 2
  %b7 = extractvalue %words %seven, 1
  %c8 = extractvalue %words %eight, 2
  %avx = call i1 @has(i32 %c1, i32 {_LEAF1})
  br i1 %avx, label %more, label %base
base:
  ret i64 0
more:
  %x = call {{i32, i32}} asm sideeffect "xgetbv", "={{ax}},={{dx}},{{cx}}"(i32 0)
  %saved = extractvalue {{i32, i32}} %x, 0
  %ymm = call i1 @has(i32 %saved, i32 {_SAVED3})
  %zmm = call i1 @has(i32 %saved, i32 {_SAVED4})
  %lzcnt = call i1 @has(i32 %c8, i32 {_LEAF8})
  %avx2 = call i1 @has(i32 %b7, i32 {_V3})
  %avx512 = call i1 @has(i32 %b7, i32 {_V4 - (1 << 32)})
  %two = and i1 %ymm, %lzcnt
  %v3 = and i1 %two, %avx2
  %four = and i1 %zmm, %avx512
  %v4 = and i1 %v3, %four
  %n3 = zext i1 %v3 to i64
  %n4 = zext i1 %v4 to i64
  %level = add i64 %n3, %n4
  ret i64 %level
}}
"""
_ONE_LEVEL = "define internal i64 @best() {\n  ret i64 0\n}\n"
_HEAD = """
declare ptr @eqfuse_enter(ptr, ptr)
declare ptr @getenv(ptr)
declare i64 @atol(ptr)
@eqfuse_limit = external global i64
@level = internal global i64 -1
@threads = internal constant [16 x i8] c"OMP_NUM_THREADS\\00"
@most = internal constant [13 x i8] c"EQFUSE_LEVEL\\00"
define internal i64 @number(ptr %name, i64 %otherwise) {
  %text = call ptr @getenv(ptr %name)
  %none = icmp eq ptr %text, null
  br i1 %none, label %no, label %yes
no:
  ret i64 %otherwise
yes:
  %value = call i64 @atol(ptr %text)
  ret i64 %value
}
define internal i64 @find() {
  %known = load atomic i64, ptr @level seq_cst, align 8
  %done = icmp sge i64 %known, 0
  br i1 %done, label %yes, label %no
yes:
  ret i64 %known
no:
  %limit = call i64 @number(ptr @threads, i64 0)
  %given = icmp sgt i64 %limit, 0
  %threads = select i1 %given, i64 %limit, i64 1024
  store i64 %threads, ptr @eqfuse_limit
  %here = call i64 @best()
  %asked = call i64 @number(ptr @most, i64 %here)
  %less = icmp ult i64 %asked, %here
  %level = select i1 %less, i64 %asked, i64 %here
  store atomic i64 %level, ptr @level seq_cst, align 8
  ret i64 %level
}
"""


def _handlers(names, levels: int, has_x86: bool) -> str:
    """Return the LLVM IR of the handlers that XLA calls, which choose the level."""
    parts, table = [_HEAD, _LEVEL_OF_X86 if has_x86 else _ONE_LEVEL], []
    for k, name in enumerate(names):
        slots = ", ".join(f"[2 x ptr] [ptr @{name}_{n}, ptr null]" for n in range(levels))
        parts += [f"declare ptr @{name}_{n}(ptr)" for n in range(levels)]
        parts.append(
            f"@slots{k} = internal constant [{levels} x [2 x ptr]] [{slots}]\n"
            f'@name{k} = internal constant [{len(name) + 1} x i8] c"{name}\\00"\n'
            f"define ptr @{name}(ptr %frame) {{\n  %level = call i64 @find()\n"
            f"  %slot = getelementptr [2 x ptr], ptr @slots{k}, i64 %level\n"
            "  %r = call ptr @eqfuse_enter(ptr %frame, ptr %slot)\n  ret ptr %r\n}"
        )
        table += [f"ptr @name{k}", f"ptr @{name}"]
    table += ["ptr null", "ptr null"]
    parts.append(f"@eqfuse_kernels = constant [{len(table)} x ptr] [{', '.join(table)}]")
    return "\n".join(parts) + "\n"


def unavailable() -> str:
    """Return why no library can be written here, or ""."""
    if sys.platform != "linux" or platform.machine() not in LEVELS:
        here = f"{sys.platform} {platform.machine()}"
        return f"libraries of kernels are written on Linux, x86_64 or aarch64, not on {here}"
    if not _linker():
        return "linking needs ld or ld.lld, and neither is installed; install binutils"
    return ""


def _linker() -> str | None:
    return shutil.which("ld") or shutil.which("ld.lld")


def _libc() -> str:
    """Return the file of the libc of this process, by whose name a library asks for libc."""
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        name = line.split(maxsplit=5)[-1]
        if "/libc.so" in name or "/libc-2" in name or "/ld-musl" in name:
            return name
    raise RuntimeError("the libc of this process is not in /proc/self/maps")


def build(texts: dict[str, str], file: pathlib.Path) -> None:
    """Write a shared library of the kernels that `machine.recording` recorded.

    Args:
      texts: the LLVM IR of each kernel, by the name of its handler.
      file: to write.
    Raises:
      RuntimeError: no library can be written here, or the linker failed.
    """
    import llvmlite.binding as llvm

    if reason := unavailable():
        raise RuntimeError(reason)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    levels = LEVELS[platform.machine()]
    runtime = Runtime(min(API_VERSIONS), large_pages=True).text()
    with tempfile.TemporaryDirectory() as folder:
        folder, objects = pathlib.Path(folder), []

        def compile_for(cpu: str, text: str):
            target = llvm.Target.from_default_triple().create_target_machine(
                cpu=cpu, opt=2, reloc="pic", jit=False
            )
            parsed = llvm.parse_assembly(text)
            parsed.verify()
            objects.append(folder / f"{len(objects)}.o")
            objects[-1].write_bytes(target.emit_object(parsed))

        compile_for(levels[0], runtime)
        compile_for(levels[0], _handlers(texts, len(levels), len(levels) > 1))
        for n, cpu in enumerate(levels):
            for name, text in texts.items():
                compile_for(cpu, text.replace(f"@{name}(", f"@{name}_{n}("))
        exported = folder / "exported"
        names = "; ".join([*texts, "eqfuse_kernels"])
        exported.write_text(f"{{ global: {names}; local: *; }};")
        command = [_linker(), "-shared", "-Bsymbolic", "-soname", file.name, "-z", "noexecstack"]
        command += ["-z", "defs", "--build-id=none", "--version-script", exported, "-o", file]
        done = subprocess.run([*command, *objects, _libc()], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{command[0]} did not link the kernels: {done.stderr.strip()}")
