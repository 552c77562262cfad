"""The command `eqfuse md`."""

from eqfuse.md.settings import Settings, help_text, parse
from eqfuse.train.run.stopping import exit_code, fail
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
        return fail(2, error)
    from eqfuse.train.device.process import keep_memory, keep_programs

    keep_programs()
    keep_memory()
    return exit_code(task, failures=(OSError,))


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
