"""PTX text as instructions."""

from __future__ import annotations

import dataclasses
import math
import re

from tests.emulator.errors import UnknownInstructionError

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)(.*?)\{", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+\.\w+(?:\s+\.ptr[^,]*?)?\s+([\w$]+)\s*(?:,|$)")
_STATEMENT = re.compile(r"(?:@(!?)(%[\w.]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_DIRECTIVES = (".reg", ".pragma", ".loc", ".file", ".maxn", ".minn", ".reqn", ".section")

# blocks of inline assembly have braces of their own, on lines of their own or around registers
_LOCAL = re.compile(r"\{\s*\.reg\s+\.(\w+)\s+([a-z]\w*)\s*;((?:[^{}]|\{[^{}]*\})*)\}")
_TARGETS = ".branchtargets"
JUMPS, BARRIERS = ("bra", "brx", "ret", "exit"), ("bar", "barrier")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction."""

    opcode: tuple[str, ...]  # its words, say ("ld", "global", "v4", "b32")
    operands: tuple[str, ...]  # as written; those in braces or brackets are one operand
    guard: str  # the predicate register that decides which threads run it; "" if all do
    negated: bool  # whether threads run it where the guard is false
    text: str  # the whole statement

    @property
    def name(self) -> str:
        return self.opcode[0]

    @property
    def type(self) -> str:
        return self.opcode[-1]

    @property
    def loads(self) -> bool:
        return self.name in ("ld", "ldmatrix")

    @property
    def is_memory(self) -> bool:
        """Whether it reads or writes global or shared memory."""
        return (self.loads and self.opcode[1] != "param") or self.name in ("st", "stmatrix")

    @property
    def targets(self) -> tuple[str, ...]:
        """The registers that it writes."""
        none = self.name in (*JUMPS, *BARRIERS, "st", "stmatrix")
        return () if none else registers(*self.operands[:1])

    def unknown(self, what: str = "is not emulated") -> UnknownInstructionError:
        """Return the error for an instruction that the emulator does not run."""
        return UnknownInstructionError(f"instruction {self.text!r} {what}")


@dataclasses.dataclass(frozen=True)
class Program:
    """A kernel."""

    name: str
    parameters: list[str]  # their names, in order
    threads: int  # of a block
    instructions: list[Instruction]
    labels: dict[str, int]  # the instruction that each label stands before
    targets: dict[str, tuple[str, ...]]  # the labels in each list of an indirect branch

    @property
    def warps(self) -> int:
        return self.threads // 32


def parse(text: str) -> Program:
    """Return the one kernel of a PTX text."""
    text = re.sub(r"//.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    [entry] = _ENTRY.finditer(text)
    name, parameters, directives = entry.groups()
    threads = re.search(r"\.(?:req|max)ntid\s+([\d\s,]+)", directives)
    if threads is None:
        raise UnknownInstructionError(f"kernel {name} does not say how many threads a block has")
    names = _PARAMETER.findall(" ".join(parameters.split()))
    block = math.prod(int(n) for n in threads[1].split(","))
    return Program(name, names, block, *_statements(_body(text, entry.end())))


def _body(text: str, start: int) -> str:
    """Return what lies between the brace before `start` and the one that closes it."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return text[start : brace.start()]
    raise UnknownInstructionError("the body of the kernel does not end")


def _statements(body: str):
    """Return the instructions, the labels, and the lists of targets of branches."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    targets: dict[str, tuple[str, ...]] = {}
    body = _LOCAL.sub(_inlined, body)
    body = re.sub(r"^\s*[{}]\s*$", "", body, flags=re.MULTILINE)
    for statement in body.split(";"):
        statement = " ".join(statement.split())
        while label := re.match(r"([$\w]+):\s*", statement):
            labels[label[1]] = len(instructions)
            statement = statement[label.end() :]
            if statement.startswith(_TARGETS):
                targets[label[1]] = _operands(statement.removeprefix(_TARGETS))
                statement = ""
        if statement and not statement.startswith(_DIRECTIVES):
            instructions.append(_instruction(statement))
    return instructions, labels, targets


def _inlined(block: re.Match) -> str:
    """Return a block with registers of its own without its braces; they are named as others are."""
    _, name, inner = block.groups()
    return re.sub(rf"(?<![\w%]){name}\b", f"%{name}{block.start()}", inner)


def _instruction(statement: str) -> Instruction:
    match = _STATEMENT.fullmatch(statement)
    if match is None:
        raise UnknownInstructionError(f"statement {statement!r} is no instruction of PTX")
    negated, guard, opcode, rest = match.groups()
    words = tuple(opcode.replace("::", ":").split("."))
    return Instruction(words, _operands(rest), guard or "", negated == "!", statement)


def _operands(text: str) -> tuple[str, ...]:
    """Return operands between commas, of which those in braces and brackets count for nothing."""
    parts = re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,])+", text)
    return tuple(part.strip() for part in parts if part.strip())


def members(operand: str) -> list[str]:
    """Return the registers of "{%r1, %r2}"; the one register of what has no braces."""
    return [part.strip() for part in operand.strip("{} ").split(",")]


def registers(*operands: str) -> tuple[str, ...]:
    """Return the registers that some operands name."""
    return tuple(name for o in operands for name in re.findall(r"%[a-z]+\d+", o))


def deciding(program: Program) -> set[str]:
    """Return the registers that addresses, guards of accesses, and branches depend on.

    Whatever writes one of them, anywhere, counts: the order of instructions is not looked at.
    """
    needed: set[str] = set()
    for i in program.instructions:
        if i.is_memory:
            needed |= {*registers(i.operands[1 if i.loads else 0], i.guard)}
        elif i.name in ("bra", "brx"):
            needed |= {*registers(*i.operands, i.guard)}
    before = None
    while before != len(needed):
        before = len(needed)
        for i in program.instructions:
            if not needed.isdisjoint(i.targets):
                needed |= {*registers(*i.operands[1:], i.guard)}
    return needed
