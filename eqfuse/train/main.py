"""The command: arguments in, exit code out."""

import contextlib
import os
import sys

from eqfuse import __version__
from eqfuse.train.device.memory import keep_freed_memory
from eqfuse.train.device.programs import keep_programs
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
        return _fail(2, error)
    return _train(config)


def _train(config: Config) -> int:
    keep_freed_memory()
    # JAX takes seconds to import: --help and refused settings do not wait for it.
    import jax

    keep_programs()
    from eqfuse import data, ops
    from eqfuse.train import CheckpointError, molecule, tetris
    from eqfuse.train.device.parallel import find_devices, matmul_precision
    from eqfuse.train.run.stopping import Interrupted, TrainingFailed

    task = tetris if config.data.name == "tetris" else molecule
    try:
        try:
            devices = find_devices(config.devices)
            ops.resolve_here(config.backend)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        precision = matmul_precision(config.precision, config.dtype, jax.devices()[0])
        x64 = jax.enable_x64(config.dtype == "float64")
        with x64, jax.default_matmul_precision(precision), _printing(devices.is_main):
            task.run(config, devices)
    except (ConfigError, data.DataError) as error:
        return _fail(2, error)
    except (TrainingFailed, CheckpointError) as error:
        return _fail(1, error)
    except Interrupted as error:
        print(error, file=sys.stderr)
        return 128 + error.signum
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


@contextlib.contextmanager
def _printing(wanted: bool):
    """Context in which what is printed is seen, or not."""
    if wanted:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _fail(code: int, error: Exception) -> int:
    # A name may hold line ends, and what a terminal takes for commands.
    shown = (c if c.isprintable() else ascii(c)[1:-1] for c in str(error))
    print(f"error: {''.join(shown)}", file=sys.stderr)
    return code
