"""Files of structures that are wrong in some way, made from random numbers."""

import gzip
import io
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import ase.build
import ase.io

from tests.fuzz.bad_arrays import ARRAYS
from tests.fuzz.bad_file import EITHER, FRAMES, READ, REFUSED, BadFile
from tests.small_runs import labelled


def _frames(rng, periodic: bool) -> str:
    """Return a good file as text: distorted water, or cells of copper."""
    frames = []
    for _ in range(FRAMES):
        atoms = ase.build.bulk("Cu", cubic=True) if periodic else ase.build.molecule("H2O")
        atoms.positions += rng.normal(scale=0.05, size=atoms.positions.shape)
        names = ("energy", "forces", "stress") if periodic else ("energy", "forces")
        frames.append(labelled(atoms, names))
    text = io.StringIO()
    ase.io.write(text, frames, format="extxyz")
    return text.getvalue()


def _text(change: Callable, expected=EITHER, *, periodic=False, settings=()) -> BadFile:
    """Return a file whose text is changed by `change(rng, text)`, which gives text or bytes."""

    def make(rng, folder: Path) -> Path:
        content = change(rng, _frames(rng, periodic))
        content = content.encode() if isinstance(content, str) else content
        path = folder / "bad.xyz"
        path.write_bytes(content)
        return path

    return BadFile(make, expected, ("data=extxyz", *settings))


def _number(value: str, *, column: str):
    """Change a number of a row: of the positions or of the forces."""

    def change(rng, text: str) -> str:
        lines = text.splitlines()
        rows = [k for k, line in enumerate(lines) if len(line.split()) == 7]
        row = rows[rng.integers(len(rows))]
        words = lines[row].split()
        words[(1 if column == "positions" else 4) + rng.integers(3)] = value
        lines[row] = " ".join(words)
        return "\n".join(lines) + "\n"

    return change


def _row(change: Callable):
    """Change the words of a row of an atom."""

    def changed(rng, text: str) -> str:
        lines = text.splitlines()
        rows = [k for k, line in enumerate(lines) if len(line.split()) == 7]
        row = rows[rng.integers(len(rows))]
        lines[row] = " ".join(change(lines[row].split()))
        return "\n".join(lines) + "\n"

    return changed


def _count(value: str):
    """Change the number of atoms of a frame."""

    def change(rng, text: str) -> str:
        lines = text.splitlines()
        rows = [k for k, line in enumerate(lines) if line.strip().isdecimal()]
        lines[rows[rng.integers(len(rows))]] = value
        return "\n".join(lines) + "\n"

    return change


def _comment(pattern: str, new: str):
    """Change the comment line of one frame."""

    def change(rng, text: str) -> str:
        lines = text.splitlines()
        rows = [k for k, line in enumerate(lines) if "Properties=" in line]
        row = rows[rng.integers(len(rows))]
        lines[row] = re.sub(pattern, lambda _: new, lines[row], count=1)
        return "\n".join(lines) + "\n"

    return change


def _everywhere(pattern: str, new: str):
    return lambda rng, text: re.sub(pattern, lambda _: new, text)


def _lattice(values: str):
    return _comment('Lattice="[^"]*"', f'Lattice="{values}"')


def _cubic(edge: float):
    return _lattice(f"{edge} 0 0 0 {edge} 0 0 0 {edge}")


def _long_comment(piece: str):
    """Two to six megabytes of a piece of text in a comment line."""

    def change(rng, text: str) -> str:
        return text.replace(
            "Properties=",
            piece * (int(rng.integers(2, 7)) * 10**6 // len(piece)) + " Properties=",
            1,
        )

    return change


def _flipped(rng, text: str) -> bytes:
    data = bytearray(text.encode())
    for place in rng.integers(len(data), size=rng.integers(1, 20)):
        data[place] = rng.integers(256)
    return bytes(data)


def _doubled(rng, text: str) -> str:
    start, end = sorted(rng.integers(len(text), size=2))
    return text[:end] + text[start:]


def _special(make: Callable) -> BadFile:
    """Put something that is no file there, by `make(path)`."""

    def made(rng, folder: Path) -> Path:
        path = folder / "bad.xyz"
        make(path)
        return path

    return BadFile(made, REFUSED, ("data=extxyz",))


def _device(name: str) -> BadFile:
    return BadFile(lambda rng, folder: Path(name), REFUSED, ("data=extxyz",))


def _packed(content: Callable, suffix: str = ".gz") -> BadFile:
    def make(rng, folder: Path) -> Path:
        path = folder / f"bad.xyz{suffix}"
        path.write_bytes(content(rng, _frames(rng, False)))
        return path

    return BadFile(make, REFUSED, ("data=extxyz",))


_FORCES = ":forces:R:3"

TEXTS = {
    "cut off": _text(lambda rng, text: text[: rng.integers(len(text))]),
    "bytes changed": _text(_flipped),
    "bytes changed in cells": _text(_flipped, periodic=True),
    "a part doubled": _text(_doubled),
    "a position NaN": _text(_number("nan", column="positions"), REFUSED),
    "a position infinite": _text(_number("-inf", column="positions"), REFUSED),
    "a position beyond floats": _text(_number("1e999", column="positions"), REFUSED),
    "a position of 1e8 Å": _text(_number("1e8", column="positions")),
    "a position of 1e300 Å": _text(_number("1e300", column="positions")),
    "a force NaN": _text(_number("NaN", column="forces"), REFUSED),
    "a force of 1e300": _text(_number("1e300", column="forces")),
    "a force of text": _text(_number("strong", column="forces"), REFUSED),
    "a decimal comma": _text(_number("1,5", column="positions"), REFUSED),
    "a number of 100,000 digits": _text(_number("9" * 100_000, column="positions")),
    "an energy NaN": _text(_comment(r"energy=\S+", "energy=nan"), REFUSED),
    "an energy of text": _text(_comment(r"energy=\S+", "energy=low"), REFUSED),
    "a weight below zero": _text(_comment(r"energy=\S+", "energy=-1 config_weight=-1"), REFUSED),
    "a weight of text": _text(_comment(r"energy=\S+", "energy=-1 config_weight=low"), REFUSED),
    "an energy of 1e300": _text(_comment(r"energy=\S+", "energy=1e300")),
    "no energy in a frame": _text(_comment(r"energy=\S+", ""), READ),
    "no forces": _text(_everywhere(_FORCES, ":push:R:3"), REFUSED),
    "no forces in a frame": _text(_comment(_FORCES, ":push:R:3"), READ),
    "forces of two numbers": _text(_comment(_FORCES, ":forces:R:2")),
    "forces of integers": _text(_comment(_FORCES, ":forces:I:3")),
    "no positions": _text(_comment("pos:R:3", "place:R:3"), REFUSED),
    "columns without types": _text(_comment("Properties=\\S+", "Properties=species:pos"), REFUSED),
    "no columns named": _text(_comment("Properties=\\S+", "")),
    "a column named twice": _text(_comment("pos:R:3", "pos:R:3:pos:R:3")),
    "a row too short": _text(_row(lambda words: words[:-1]), REFUSED),
    "a row too long": _text(_row(lambda words: [*words, "1.0"])),
    "an unknown element": _text(_row(lambda words: ["Qq", *words[1:]]), REFUSED),
    "a dummy element": _text(_row(lambda words: ["X", *words[1:]]), REFUSED),
    "a number for an element": _text(_row(lambda words: ["119", *words[1:]])),
    "too many atoms promised": _text(_count("4"), REFUSED),
    "too few atoms promised": _text(_count("2"), REFUSED),
    "no atoms promised": _text(_count("0"), REFUSED),
    "a negative number of atoms": _text(_count("-3"), REFUSED),
    "10^30 atoms": _text(_count("1" + "0" * 30), REFUSED),
    "5000 digits of atoms": _text(_count("3" * 5000), REFUSED),
    "a float number of atoms": _text(_count("3.0"), REFUSED),
    "a cell of NaN": _text(_lattice(" ".join(["nan"] * 9)), REFUSED, periodic=True),
    "a cell of zeros": _text(_lattice(" ".join(["0"] * 9)), REFUSED, periodic=True),
    "a cell of eight numbers": _text(_lattice(" ".join("30003000")), REFUSED, periodic=True),
    "a flat cell": _text(_lattice("3 0 0 0 3 0 3 3 0"), periodic=True),
    "a left-handed cell": _text(_lattice("0 3.6 0 3.6 0 0 0 0 3.6"), periodic=True),
    "a cell of 0.1 Å": _text(_cubic(0.1), periodic=True),
    "a cell of 1e-3 Å": _text(_cubic(1e-3), periodic=True),
    "a cell of 1e-300 Å": _text(_cubic(1e-300), periodic=True),
    "a cell of 1e6 Å": _text(_cubic(1e6), periodic=True),
    "a cell of 1e300 Å": _text(_cubic(1e300), periodic=True),
    "a cutoff of 1e9 Å": _text(lambda _, text: text, periodic=True, settings=("cutoff=1e9",)),
    "a cutoff of 1e-9 Å": _text(lambda _, text: text, settings=("cutoff=1e-9",)),
    "pbc of two": _text(_comment('pbc="[^"]*"', 'pbc="T T"'), periodic=True),
    "pbc of words": _text(_comment('pbc="[^"]*"', 'pbc="maybe so what"'), periodic=True),
    "a stress of five": _text(
        _comment('stress="[^"]*"', 'stress="1 2 3 4 5"'),
        REFUSED,
        periodic=True,
        settings=("training.stress_weight=1",),
    ),
    "a stress NaN": _text(
        _comment('stress="[^"]*"', f'stress="{" ".join(["nan"] * 9)}"'),
        REFUSED,
        periodic=True,
        settings=("training.stress_weight=1",),
    ),
    "no bytes": _text(lambda *_: "", REFUSED),
    "blank lines only": _text(lambda *_: "\n" * 1000, REFUSED),
    "one frame": _text(lambda _, text: "".join(text.splitlines(keepends=True)[:5]), REFUSED),
    "random bytes": _text(lambda rng, _: rng.bytes(5000), REFUSED),
    "NULs": _text(lambda *_: bytes(5000), REFUSED),
    "UTF-16": _text(lambda _, text: text.encode("utf-16"), REFUSED),
    "a byte of Latin-1": _text(lambda _, text: text.encode() + b"\xe9", REFUSED),
    "a byte-order mark": _text(lambda _, text: "\ufeff" + text, READ),
    "line ends of Windows": _text(lambda _, text: text.replace("\n", "\r\n"), READ),
    "blank lines between frames": _text(_everywhere(r"(?m)^3$", "\n\n3"), READ),
    "a comment of quotes": _text(_long_comment('"')),
    "a comment of brackets": _text(_long_comment("[")),
    "a comment of opened stresses": _text(_long_comment("stress=[[")),
    "a comment of backslashes": _text(_long_comment("\\")),
    "a comment of keys": _text(_long_comment("key=1 ")),
    "a comment of spaces": _text(_long_comment(" ")),
    "a comment of one word": _text(_long_comment("a")),
    "all atoms at one place": _text(_everywhere(r"(?m)^([OH]) .*$", "H" + 6 * " 0.0")),
    "forces of zero": _text(_everywhere(r"(?m)(?:\s+\S+){3}$(?<=\d)", " 0.0 0.0 0.0")),
}

SPECIALS = {
    "a FIFO": _special(os.mkfifo),
    "a folder": _special(Path.mkdir),
    "nothing": _special(lambda path: None),
    "a broken link": _special(lambda path: path.symlink_to("nowhere")),
    "a link to itself": _special(lambda path: path.symlink_to(path.name)),
    "/dev/null": _device("/dev/null"),
    "/dev/zero": _device("/dev/zero"),
    "/dev/urandom": _device("/dev/urandom"),
    "a pickle": _special(lambda path: path.write_bytes(pickle.dumps({"energy": 1.0}))),
    "text called gz": _packed(lambda _, text: text.encode()),
    "gz cut off": _packed(lambda _, text: gzip.compress(text.encode())[:-20]),
    "gz of 200 MB of zeros": _packed(lambda *_: gzip.compress(bytes(2 * 10**8), 1)),
    "xz of nothing": _packed(lambda *_: b"", ".xz"),
}

BAD_FILES: dict[str, BadFile] = {**TEXTS, **SPECIALS, **ARRAYS}
