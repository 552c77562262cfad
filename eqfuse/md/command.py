"""The command `eqfuse md`."""

import sys

from eqfuse.md.settings import Settings, help_text, parse
from eqfuse.train.settings.schema import ConfigError

USAGE = "eqfuse md RUN START [name=value ...], or eqfuse md resume=FOLDER [steps=N]; see --help"


def main(arguments: list[str]) -> int:
    """Run what the arguments ask for.

    Returns:
      0 done; 1 the simulation was stopped by a limit, or a file of a network is not readable;
      2 settings or structure refused; 128 + signal if interrupted.
    """
    if "--help" in arguments or "-h" in arguments:
        print(help_text())
        return 0
    try:
        task = _task(arguments)
    except ConfigError as error:
        return _fail(2, error)
    from eqfuse.data import DataError
    from eqfuse.train import CheckpointError
    from eqfuse.train.device.programs import keep_programs
    from eqfuse.train.run.stopping import Interrupted, TrainingFailed

    keep_programs()
    try:
        task()
    except (ConfigError, DataError) as error:
        return _fail(2, error)
    except (TrainingFailed, CheckpointError, OSError) as error:
        return _fail(1, error)
    except Interrupted as error:
        print(error, file=sys.stderr)
        return 128 + error.signum
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _task(arguments: list[str]):
    """Return the function that does what is asked for."""
    resumed = [a.partition("=")[2] for a in arguments if a.startswith("resume=")]
    if resumed:
        others = [a for a in arguments if not a.startswith("resume=")]
        steps = Settings(**parse(others, ("steps",))).steps if others else None
        from eqfuse.md.simulation import resume

        return lambda: resume(resumed[-1], steps)
    if len(arguments) < 2 or any("=" in a for a in arguments[:2]):
        raise ConfigError(f"a network and a structure are needed: {USAGE}")
    network, start, *others = arguments
    settings = Settings(**parse(others))
    from eqfuse.md.simulation import run

    return lambda: run(network, start, settings)


def _fail(code: int, error: Exception) -> int:
    # A name may hold line ends, and what a terminal takes for commands.
    shown = (c if c.isprintable() else ascii(c)[1:-1] for c in str(error))
    print(f"error: {''.join(shown)}", file=sys.stderr)
    return code
