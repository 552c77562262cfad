"""Errors that the emulator finds in a kernel."""


class EmulationError(Exception):
    """A kernel did what it must not, or what the emulator does not know."""


class UnknownInstructionError(EmulationError):
    """An instruction, or a form of one, that the emulator does not run."""


class OutOfBoundsError(EmulationError):
    """An access outside every array, or outside the shared memory of the block."""


class MisalignedError(EmulationError):
    """An access at an address that is no multiple of its width."""


class NeverWrittenError(EmulationError):
    """A register, shared memory or an output is used, or returned, and nobody wrote it."""


class DivergentBranchError(EmulationError):
    """Threads of one block go different ways."""


class RaceError(EmulationError):
    """Two warps or blocks use one place, one of them writes, and no barrier lies between."""
