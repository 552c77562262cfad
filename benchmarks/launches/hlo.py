"""What the operations of a compiled program come from, from the text of its HLO.

Every instruction carries the scopes of the modules that it was traced in, and the lines of Python.
XLA makes new ones, such as copies and padding, that carry neither; they come from what uses them.
"""

from __future__ import annotations

import dataclasses
import re

NOT_ATTRIBUTED = "not attributed"
# These are no work: no thunk runs and no kernel is launched for them.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (?:\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_CALLS = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-]+)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction of a program.

    Attributes:
      name, opcode: of XLA.
      op_name: scopes and JAX's primitive, such as "jit(step)/layer_0/linear_up/dot_general"; "" for
        what XLA has made itself.
      frame: the line of Python, in the tables of the program; 0 if there is none.
      operands: names of the instructions that it uses.
      calls: the computation that it runs, such as that of a fusion; "" if none.
      target: of a custom call.
    """

    name: str
    opcode: str
    op_name: str
    frame: int
    operands: tuple[str, ...]
    calls: str
    target: str

    @classmethod
    def parse(cls, line: str) -> Instruction | None:
        """Parse a line of HLO; None if it holds none."""
        match = _INSTRUCTION.match(line)
        if match is None:
            return None
        name, opcode, rest = match.groups()
        op_name, frame, calls, target = (
            match[1] if (match := pattern.search(rest)) else ""
            for pattern in (_OP_NAME, _FRAME, _CALLS, _TARGET)
        )
        operands = tuple(re.findall(r"%([\w.\-]+)", rest.partition("), ")[0]))
        return cls(name, opcode, op_name, int(frame or 0), operands, calls, target)

    @property
    def primitive(self) -> str:
        """Return JAX's name of the operation; "" if it has none."""
        return self.op_name.rpartition("/")[2]


class HloProgram:
    """A compiled program.

    Args:
      text: of its HLO after all passes, `compiled.as_text()`.
    Attributes:
      computations: the instructions of each, in the order of the text.
      entry: those that it runs, which do some work.
      by_name: all instructions.
    Raises:
      ValueError: the text is not that of a program.
    """

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        entry, current = None, []
        for line in text.splitlines():
            if header := _COMPUTATION.match(line):
                current = self.computations.setdefault(header[2], [])
                entry = current if header[1] else entry
            elif instruction := Instruction.parse(line):
                current.append(instruction)
        if entry is None:
            raise ValueError(f"not the text of a compiled program: {text[:80]!r}")
        self.entry = [i for i in entry if i.opcode not in _FREE]
        self.by_name = {i.name: i for c in self.computations.values() for i in c}
        self._users: dict[str, list[Instruction]] = {}
        for instruction in entry:
            for operand in instruction.operands:
                self._users.setdefault(operand, []).append(instruction)
        self._frames = _Frames(text)

    def named(self, instruction: Instruction) -> Instruction:
        """Return this instruction, or the last one on the way that has a name in it."""
        if instruction.op_name:
            return instruction
        inner = (i for i in reversed(self.computations.get(instruction.calls, ())) if i.op_name)
        return next(inner, instruction)

    def source(self, instruction: Instruction) -> str:
        """Return the part of the model, or the Python function, that an instruction comes from.

        Modules that are numbered, such as the layers, are taken together: "layer/linear_up". What
        no module holds has the function that it was traced in: "unflatten (training/flat.py)".
        """
        seen, queue = {instruction.name}, [instruction]
        for candidate in queue:
            named = self.named(candidate)
            if source := _scopes(named.op_name) or self._frames.function(named.frame):
                return source
            users = self._users.get(candidate.name, ())
            queue += [user for user in users if user.name not in seen]
            seen |= {user.name for user in users}
        return NOT_ATTRIBUTED


def _scopes(op_name: str) -> str:
    """Return modules and named scopes; "" where there is none but the whole model."""
    words = [w for w in op_name.split("/")[:-1] if w and not re.search(r"[(.]", w)]
    # A derivative of a derivative names the path again.
    words = list(dict.fromkeys(re.sub(r"_\d+$", "", word) for word in words))
    return "/".join(words[words[:1] == ["model"] :])


class _Frames:
    """The tables of files, functions and lines at the head of a program."""

    def __init__(self, text: str):
        head = text.partition("\nENTRY")[0]
        self._files = dict(re.findall(r'^(\d+) "(.*)"$', _table(head, "FileNames"), re.M))
        self._functions = dict(re.findall(r'^(\d+) "(.*)"$', _table(head, "FunctionNames"), re.M))
        location = r"^(\d+) \{file_name_id=(\d+) function_name_id=(\d+)"
        frame = r"^(\d+) \{file_location_id=(\d+)"
        locations = re.findall(location, _table(head, "FileLocations"), re.M)
        self._locations = {number: rest for number, *rest in locations}
        self._frames = dict(re.findall(frame, _table(head, "StackFrames"), re.M))

    def function(self, frame: int) -> str:
        """Return the function of a frame, and its package or file; "" if it is not known."""
        location = self._locations.get(self._frames.get(str(frame)))
        if location is None:
            return ""
        path, function = self._files[location[0]], self._functions[location[1]]
        name = next(w for w in reversed(function.split(".")) if not w.startswith("<"))
        _, installed, package = path.rpartition("/site-packages/")
        file = package.partition("/")[0] if installed else "/".join(path.split("/")[-2:])
        return f"{name} ({file})"


def _table(head: str, title: str) -> str:
    return head.partition(f"\n{title}\n")[2].partition("\n\n")[0]
