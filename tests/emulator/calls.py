"""Functions of a PTX text, written out where the kernel calls them."""

import re

from tests.emulator.errors import UnknownInstructionError

_FUNCTION = re.compile(r"^\.func\s+([\w$]+)\s*\(([^)]*)\)\s*([;{])", re.MULTILINE)
_CALL = re.compile(
    r"\{\s*((?:\.param\s+\.\w+\s+param\d+;\s*)*)((?:[^{}]|\{[^{}]*\})*?)"
    r"call\.uni\s+([\w$]+),\s*\(([^)]*)\);\s*\}"
)
_ARGUMENT = re.compile(r"st\.param\.\w+\s+\[(param\d+)\],\s*([^;]+);")
_REGISTER = re.compile(r"%([a-z]+)(?=\d|<)")

_MOVES = (
    ("b64", "%rd", r"mov.b64 \1, {value}"),
    ("b32", "%rd", r"cvt.u64.u32 \1, {value}"),
    ("b32", "%r", r"mov.b32 \1, {value}"),
    ("b16", "%rs", r"cvt.u16.u32 \1, {value}"),
    ("b8", "%rs", r"cvt.u16.u32 \1, {value};\n\tand.b16 \1, \1, 255"),
)
"""What takes the place of a load of an argument: its type, the register, the instructions."""


def inlined(text: str) -> str:
    """Return a text of one kernel without functions: what their calls do, in their place.

    Registers and labels of a function get the number of its call. Results, and calls within
    functions, are not known.

    Raises:
      UnknownInstructionError: a call of another kind.
    """
    bodies, kept, end = {}, [], 0
    for match in _FUNCTION.finditer(text):
        kept.append(text[end : match.start()])
        name, parameters, brace = match.groups()
        end = match.end()
        if brace == "{":
            end = closing(text, end)
            names = re.findall(r"([\w$]+_param_\d+)", parameters)
            bodies[name] = names, text[match.end() : end - 1]
    calls = 0

    def written(match: re.Match) -> str:
        nonlocal calls
        calls += 1
        _, before, name, given = match.groups()
        values = dict(_ARGUMENT.findall(before))
        names, body = bodies[name]
        arguments = dict(zip(names, (values[a.strip()] for a in given.split(",")), strict=True))
        return _ARGUMENT.sub("", before) + _written(body, arguments, calls)

    result = _CALL.sub(written, "".join([*kept, text[end:]]))
    if re.search(r"\bcall\b", result):
        raise UnknownInstructionError("a call that has results, or stands within a function")
    return result


def closing(text: str, start: int) -> int:
    """Return the place behind the brace that closes the one before `start`."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.end()
    raise UnknownInstructionError("the body of a kernel or a function does not end")


def _written(body: str, arguments: dict[str, str], number: int) -> str:
    """Return the body of a function for a call."""
    body = _REGISTER.sub(lambda m: m[0] if m[1] in ("tid", "ctaid") else f"%{m[1]}{number}_", body)
    body = re.sub(r"\$L_\w+", lambda m: f"{m[0]}_{number}", body)
    for name, value in arguments.items():
        for size, register, moves in _MOVES:
            load = rf"ld\.param\.{size}\s+({register}\d+\w*), \[{re.escape(name)}\]"
            body = re.sub(load, moves.format(value=value), body)
    body = re.sub(r"\bret;", f"bra $L__back_{number};", body)
    return f"{body}\n$L__back_{number}:\n"
