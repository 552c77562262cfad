"""Machine code that ptxas makes of PTX: its instructions by pipe, its loops, the time of a warp."""

from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
import re
import subprocess
import tempfile

import numpy as np

_LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_REGISTER = re.compile(r"(?<![\w.])(U?[RP])(\d+)\b(\.64)?")

_MULTIPLIED = {"HMMA.1688": 1024, "HMMA.16816": 2048}
"""Multiply-adds of an instruction of the matrix unit, by its shape."""
_OF_FOUR_WARPS = re.compile(r"HGMMA\.64x(\d+)x(\d+)")
"""One that four warps run together, each a quarter of the rows."""

PIPES = ("fp32", "fp64", "integer", "special", "matrix", "memory", "shuffle", "other")
_PIPES = (
    ("memory", r"LDG|STG|LDS|STS|LDSM|STSM|LD\b|ST\b|LDL|STL|LDC|ULDC|ATOM|RED\b|CCTL"),
    ("shuffle", r"SHFL|REDUX|VOTE|MATCH"),
    ("matrix", r"HMMA|DMMA|IMMA|HGMMA"),
    ("fp64", r"DFMA|DADD|DMUL|DSETP|DMNMX"),
    ("special", r"MUFU|I2F|F2I|F2F(?!P)|I2FP"),
    ("fp32", r"FFMA|FMUL|FADD|IMAD|HFMA|HADD|HMUL|FSWZ"),
    (
        "integer",
        r"IADD|LEA|LOP|SHF|ISETP|FSETP|SEL|FSEL|PRMT|MNMX|IMNMX|FMNMX|PLOP|U[A-Z]|VIADD"
        r"|BMSK|SGXT|IABS|MOV|FCHK|F2FP|LOP3|POPC|FLO|P2R|R2P",
    ),
)


@dataclasses.dataclass(frozen=True)
class Code:
    """An instruction of the machine.

    Attributes:
      opcode: with its modifiers.
      guard: the predicate; "" if none.
      operands: as cuobjdump writes them.
    """

    opcode: str
    guard: str
    operands: str

    @functools.cached_property
    def pipe(self) -> str:
        """Return which unit runs it; IMAD runs where FFMA does."""
        for pipe, pattern in _PIPES:
            if re.match(pattern, self.opcode):
                return pipe
        return "other"

    @property
    def multiplied(self) -> int:
        """Return the multiply-adds of the matrix unit, those of TF32 as two of 16 bits.

        Raises:
          ValueError: an instruction of the matrix unit whose shape is not known.
        """
        if self.pipe != "matrix" or self.opcode.startswith("DMMA"):  # those of float64
            return 0
        shape = ".".join(self.opcode.split(".")[:2])
        if group := _OF_FOUR_WARPS.match(shape):
            count = 64 // 4 * int(group[1]) * int(group[2])
        elif shape in _MULTIPLIED:
            count = _MULTIPLIED[shape]
        else:
            raise ValueError(f"how much {self.opcode} multiplies is not known")
        return count * (2 if "TF32" in self.opcode else 1)

    @functools.cached_property
    def kind(self) -> str:
        """Return what its latency depends on; as `pipe`, and of memory which one."""
        if self.opcode.startswith("BAR"):
            return "barrier"
        if self.opcode.startswith(("BRA", "BRX", "EXIT", "WARPSYNC", "BSYNC")):
            return "branch"
        if self.pipe != "memory":
            return self.pipe
        if self.opcode.startswith("LDG"):
            return "load"
        constant = self.opcode.startswith(("LDC", "ULDC"))
        return "shared" if self.opcode.startswith(("LDS", "LDSM")) or constant else "store"

    @functools.cached_property
    def registers(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what it writes and what it reads."""
        stores = self.kind in ("store", "barrier", "branch")
        parts = re.split(r",\s*(?![^\[]*\])", self.operands)
        count = 0 if stores else 2 if re.match(r"\S*SETP|PLOP3", self.opcode) else 1
        written = _names(", ".join(parts[:count]), self._width())
        wide = 2 if self.pipe == "fp64" else 1
        read = _names(", ".join(parts[count:]), wide)
        return written, (*read, *_names(self.guard.lstrip("!"), 1))

    def _width(self) -> int:
        """Return how many registers it writes from the one that it names."""
        if self.pipe == "fp64" or ".WIDE" in self.opcode or ".64" in self.opcode:
            return 2
        return 4 if ".128" in self.opcode or self.pipe == "matrix" else 1


def _names(text: str, width: int) -> tuple[str, ...]:
    found = []
    for kind, number, pair in _REGISTER.findall(text):
        count = 1 if kind.endswith("P") else max(width, 2 if pair else 1)
        found += [f"{kind}{int(number) + n}" for n in range(count)]
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Loop:
    """Instructions first to last, of which the last jumps back."""

    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class Listing:
    """The machine code of a kernel."""

    codes: tuple[Code, ...]
    loops: tuple[Loop, ...]

    def depth(self) -> list[int]:
        """Return how many loops each instruction is in."""
        return [
            sum(loop.first <= n <= loop.last for loop in self.loops) for n in range(len(self.codes))
        ]


def listing(ptx: str) -> Listing:
    """Return the machine code of a kernel, by the ptxas and the cuobjdump of triton's wheel.

    Raises:
      RuntimeError: one of them fails.
    """
    import triton

    programs = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "kernel.ptx"
        file.write_text(ptx)
        target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)[1]
        binary = file.with_suffix(".cubin")
        _run([programs / "ptxas", f"--gpu-name={target}", file, "-o", binary])
        return parse(_run([programs / "cuobjdump", "-sass", binary]))


def _run(command) -> str:
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"{pathlib.Path(command[0]).name} failed: {run.stderr}")
    return run.stdout


def parse(text: str) -> Listing:
    """Return the listing of what cuobjdump prints."""
    found = [match.groups() for match in map(_LINE.match, text.splitlines()) if match]
    places = {int(address, 16): n for n, (address, *_) in enumerate(found)}
    codes = [Code(opcode, guard or "", operands) for _, guard, opcode, operands in found]
    loops = []
    for n, code in enumerate(codes):
        target = re.search(r"\b0x([0-9a-f]+)$", code.operands)
        if code.opcode.startswith("BRA") and target and places[int(target[1], 16)] < n:
            loops.append(Loop(places[int(target[1], 16)], n))
    jumps = {loop.last for loop in loops}
    while codes and codes[-1].opcode in ("NOP", "BRA") and len(codes) - 1 not in jumps:
        codes.pop()  # padding, and the branch to itself before it
    return Listing(tuple(codes), tuple(sorted(loops, key=lambda loop: (loop.first, -loop.last))))


def cycles(codes, latency: dict[str, int], load: int, fetch: Fetch | None = None) -> int:
    """Return the cycles from the first to the last instruction of one warp, alone on its scheduler.

    Instructions are issued in order, one per cycle, each when what it reads is there.

    Args:
      codes: in the order that they run.
      latency: of each kind.
      load: of a load from global memory.
      fetch: how cold code arrives; None for code that is there.
    """
    ready: dict[str, int] = collections.defaultdict(int)
    time, begun = 0, []
    for n, code in enumerate(codes):
        if fetch is not None and n % fetch.line == 0:
            time = max(time, fetch.arrival(begun))
            begun.append(time)
        written, read = code.registers
        time = max([time + 1, *(ready[name] for name in read), *(ready[w] for w in written)])
        kind = code.kind
        if kind in ("barrier", "branch"):
            time += latency[kind]
        after = load if kind == "load" else latency.get(kind, latency["other"])
        for name in written:
            ready[name] = time + after
    return time


@dataclasses.dataclass(frozen=True)
class Fetch:
    """How cold code arrives: lines are asked for in order, some ahead of the one that is run.

    Attributes:
      line: instructions of a line.
      ahead: lines that are asked for ahead.
      cycles: until a line arrives.
      first: cycles until the first of these arrive; 0 where they were asked for before.
    """

    line: int
    ahead: int
    cycles: int
    first: int

    def arrival(self, begun: list[int]) -> int:
        """Return when the next line arrives, after those before were begun."""
        line = len(begun)
        return self.first if line < self.ahead else begun[line - self.ahead] + self.cycles


def chain(codes) -> int:
    """Return the most instructions of which each needs the result of the one before."""
    longest: dict[str, int] = collections.defaultdict(int)
    found = 0
    for code in codes:
        written, read = code.registers
        length = 1 + max((longest[name] for name in read), default=0)
        found = max(found, length)
        for name in written:
            longest[name] = length
    return found


def weights(listing: Listing, run) -> tuple[list[float], str]:
    """Return how often the blocks of a run execute each instruction, and how that was found.

    Outside of loops: as often as PTX outside of loops, on the mean; blocks skip what is for others.
    "loops": the loops of SASS and of PTX are as
    many, nested alike, and are taken to be the same ones in order, so that the turns of one are
    those of the other. "accesses": they are not alike, as ptxas has unrolled or split one. Then all
    loops turn equally often, such that accesses of global memory are as many as in PTX.

    Args:
      listing: of the kernel.
      run: an `emulator.machine.Run` of it.
    """
    program, visits = run.program, run.visits
    starts = float(visits[0])
    loops = ptx_loops(program)
    if _depths(loops) == _depths(listing.loops):
        outside = float(np.mean(np.array(visits)[_outside(loops, len(program.instructions))]))
        found = [outside] * len(listing.codes)
        for ours, theirs in zip(listing.loops, loops, strict=True):
            turns = float(visits[theirs.last])
            found[ours.first : ours.last + 1] = [turns] * (ours.last + 1 - ours.first)
        return found, "loops"
    wanted = sum(
        float(n)
        for n, i in zip(visits, program.instructions, strict=True)
        if i.name in ("ld", "st") and "global" in i.opcode
    )
    inside = [depth > 0 for depth in listing.depth()]
    is_global = [code.opcode.startswith(("LDG", "STG")) for code in listing.codes]
    outer = sum(g and not i for g, i in zip(is_global, inside, strict=True))
    inner = sum(g and i for g, i in zip(is_global, inside, strict=True))
    turns = max((wanted - starts * outer) / inner, starts) if inner else starts
    return [turns if i else starts for i in inside], "accesses"


def ptx_loops(program) -> list[Loop]:
    """Return the loops of a kernel's PTX."""
    found = []
    for n, instruction in enumerate(program.instructions):
        if instruction.name == "bra" and program.labels[instruction.operands[0]] <= n:
            found.append(Loop(program.labels[instruction.operands[0]], n))
    return sorted(found, key=lambda loop: (loop.first, -loop.last))


def _outside(loops, count: int) -> np.ndarray:
    """Return which of `count` instructions are in no loop."""
    found = np.ones(count, bool)
    for loop in loops:
        found[loop.first : loop.last + 1] = False
    return found


def _depths(loops) -> list[int]:
    return [sum(o.first <= loop.first and loop.last <= o.last for o in loops) for loop in loops]
