"""Wrong settings: each is refused in one line that names it, or means something and is trained."""

import contextlib
import os
import re
import shutil
import string
from pathlib import Path

import jax
import numpy as np

from eqfuse.train.main import main
from eqfuse.train.settings.config import known
from eqfuse.train.settings.options import SHORTHANDS
from tests.fuzz.checks import (
    FailureError,
    check_no_traceback,
    check_refusal,
    memory_limit,
    one,
    run_command,
    small_run,
)

WORDS = """
-1 0 -0.0 1e-300 1e-9 1e9 1e300 -1e300 inf -inf nan 1.5 six None null true [] [1,2] {} '' " ' [ } ~
1_0 0x10 1e ++1 ٣ ½ é 10**9 1;2 1,2 1=2 \\ ${seed} ${nothing} ${data} ${ ${oc.env:HOME} ???
~not_me/x ${oc.env:NOTHING_OF_THIS_NAME} / . .. * [a] file://x /dev/null /dev/zero /nowhere/at/all
/proc/self/mem 2147483648 9223372036854775808 -9223372036854775808
"""
TEXTS = ["", " ", "\t", "1 2", "{a: 1}", "a\nb", "a\x00b", "a\x1b[31mb", "\udcff"]
LONG = ["1" + "0" * 30, "9" * 5000, "a" * 300, "a" * 5000]
VALUES = [*WORDS.split(), *TEXTS, *LONG]
PATHS = ("run", "resume", "start_from", "data.path", "data.val_path", "data.reference_energies")
CHOICES = ("model", "data", "preset", "backend", "devices", "dtype")
ARGUMENTS = """
= lr lr== --lr=1 -x +lr=1 ~model ~lr lr.x=1 model.=1 .lr=1 =1 a.b.c=1 lr:1 LR=1 lr@x=1 @= a/b.c=x
training=tetris model.name=mace data.name=lif max_minutes=1e-12 data.val=21 data.train=0.001
"""
ARGUMENTS = [*ARGUMENTS.split(), "lr =1", " lr=1", "lr=1\x00", "\x00", "\n", "", "{lr: 1}"]
_SIZES = "channels|hidden|layers|lmax|num_bessel|poly_power|correlation|dim"
_TOO_LARGE = re.compile(rf"({_SIZES})=.*\d{{3}}")


class Cases:
    """The settings of this training, by the full name or the short one; see `__main__`."""

    seconds = 120

    def __init__(self, folder: Path):
        self._settings = small_run(folder, "epochs=1", "data.train=4")
        self._run = folder / "settings"
        self._names = sorted({*known("nequip"), *SHORTHANDS})

    def prepare(self, seed: int):
        """Choose a setting."""
        rng = np.random.default_rng(seed)
        argument = self._argument(rng)

        def case():
            shutil.rmtree(self._run, ignore_errors=True)
            try:
                with contextlib.chdir(self._run.parent), memory_limit(12_000):
                    return self._outcome(argument)
            finally:
                jax.clear_caches()

        return argument, case

    def _argument(self, rng) -> str:
        kind = rng.random()
        if kind < 0.15:
            return one(rng, ARGUMENTS)
        if kind < 0.3:
            return f"{_misspelt(rng, one(rng, self._names))}={one(rng, VALUES)}"
        names = PATHS if kind < 0.5 else CHOICES if kind < 0.6 else self._names
        while True:
            argument = f"{one(rng, names)}={one(rng, VALUES)}"
            # A network that large is a valid wish, and a test of the machine's memory.
            if not _TOO_LARGE.search(argument):
                return argument

    def _outcome(self, argument: str) -> str:
        name, _, value = argument.partition("=")
        arguments = [*self._settings, f"run={self._run}", argument]
        if name == "resume":
            arguments = [argument]
        elif name in ("start_from", "data.val_path"):
            # The network, or the frames to validate with, are those of what is named.
            kept = ("data=", "data.path=")
            arguments = [a for a in arguments if a.startswith((*kept, name, "run="))]
        output = run_command(main, arguments)
        check_no_traceback(output)
        if output.code == 0:
            return "trained"
        if output.code == 2 and self._run.exists():
            raise FailureError(f"refused, and the folder of the run was made: {output.error[:200]}")
        # A path may be named as it was read.
        paths = [os.path.expanduser(value), str(Path(value)), os.path.abspath(value)]
        named = [name.rpartition(".")[2], argument, *([value] if len(value) > 2 else [])]
        named += [path for path in paths if name in PATHS and value]
        named = [_as_printed(text) for text in named if text]
        check_refusal(output, *(named if argument else ["name=value"]))
        return f"refused: {output.error}"


def _as_printed(text: str) -> str:
    """Return a name without what a terminal would not print."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _misspelt(rng, name: str) -> str:
    """Return a name with a letter dropped, doubled, replaced or swapped with the next."""
    place, letter = int(rng.integers(len(name))), one(rng, string.ascii_lowercase + "._-é")
    before, here, after = name[:place], name[place], name[place + 1 :]
    swapped = name[place : place + 2][::-1] + name[place + 2 :]
    return before + one(rng, (after, here + here + after, letter + after, swapped))
