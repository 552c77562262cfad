"""The command: arguments in, exit code out."""

import contextlib
import os
import sys

from eqfuse import __version__
from eqfuse.train.device.memory import keep_freed_memory
from eqfuse.train.device.programs import keep_programs
from eqfuse.train.exit_code import exit_code, fail
from eqfuse.train.run.resume import resumed_config, started_config
from eqfuse.train.settings.config import Config
from eqfuse.train.settings.help import help_text
from eqfuse.train.settings.options import parse, to_yaml
from eqfuse.train.settings.schema import ConfigError


def main(arguments: list[str] | None = None, program: str = "python train.py") -> int:
    """Run what the arguments ask for.

    Args:
      arguments: settings such as "layers=3"; None for those of the command line.
      program: how it was called, for the help text.
    Returns:
      0 done; 1 the training failed; 2 settings or data refused; 128 + signal if interrupted.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if "--help" in arguments or "-h" in arguments:
        print(help_text(program))
        return 0
    if "--version" in arguments:
        print(f"eqfuse {__version__}")
        return 0
    try:
        settings = [argument for argument in arguments if argument != "--cfg"]
        config = resumed_config(parse, settings) or started_config(parse, settings)
        config = config or parse(settings)
        if "--cfg" in arguments:
            print(to_yaml(config), end="")
            return 0
    except ConfigError as error:
        return fail(2, error)
    return _train(config)


def _train(config: Config) -> int:
    keep_freed_memory()
    # JAX takes seconds to import: --help and refused settings do not wait for it.
    import jax

    keep_programs()
    from eqfuse import ops
    from eqfuse.train import molecule, tetris
    from eqfuse.train.device.parallel import find_devices, matmul_precision

    def task():
        try:
            devices = find_devices(config.devices)
            ops.resolve_here(config.backend)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        precision = matmul_precision(config.precision, config.dtype, jax.devices()[0])
        x64 = jax.enable_x64(config.dtype == "float64")
        kind = tetris if config.data.name == "tetris" else molecule
        with x64, jax.default_matmul_precision(precision), _printing(devices.is_main):
            kind.run(config, devices)

    return exit_code(task)


@contextlib.contextmanager
def _printing(wanted: bool):
    """Context in which what is printed is seen, or not."""
    if wanted:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
