"""The command: arguments in, exit code out."""

import contextlib
import datetime
import os
import sys

from eqfuse import __version__
from eqfuse.train.device.process import keep_freed_memory, keep_programs
from eqfuse.train.run.files import new_folder
from eqfuse.train.run.resume import resumed_config, started_config
from eqfuse.train.run.stopping import exit_code, fail
from eqfuse.train.settings.config import Config, RunSettings
from eqfuse.train.settings.help import help_text, presets
from eqfuse.train.settings.mace import translated
from eqfuse.train.settings.options import parse, sweep, to_yaml
from eqfuse.train.settings.schema import ConfigError
from eqfuse.train.tetris_settings import TETRIS, asks_for_tetris


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments, or the command line, ask for; return the code of `exit_code`."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if "--help" in arguments or "-h" in arguments:
        print(help_text())
        return 0
    if "--version" in arguments:
        print(f"eqfuse {__version__}")
        return 0
    try:
        if arguments[:1] == ["--from-mace"]:
            print(translated(" ".join(arguments[1:])))
            return 0
        settings = [argument for argument in arguments if argument != "--cfg"]
        configs = _configs(settings)
    except ConfigError as error:
        return fail(2, error)
    if "--cfg" in arguments:
        print("---\n".join(map(_described, configs)), end="")
        return 0
    return _train_all(configs)


def _described(config: RunSettings) -> str:
    """Return a configuration as YAML, with a comment on its preset."""
    ours = (config.model.name, config.preset)
    comment = "".join(f"# preset={n}: {text}\n" for m, n, text in presets() if (m, n) == ours)
    return comment + to_yaml(config)


def _configs(arguments: list[str]) -> list[RunSettings]:
    """Return the configurations of the runs that the arguments ask for, all checked."""
    arguments, runs = sweep(arguments)
    if not runs:
        return [_config(arguments)]
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if "resume" in given:
        raise ConfigError("resume= goes on with one run; leave seeds= and -m out")
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = given.get("run", f"runs/{stamp}_sweep")
    configs = [_config([*arguments, *own, f"run={folder}/{name}"]) for name, own in runs]
    for config in configs:
        new_folder(config.run, "run")
    return configs


def _config(arguments: list[str]) -> RunSettings:
    if asks_for_tetris(arguments):
        return parse(arguments, TETRIS)
    return resumed_config(arguments) or started_config(arguments) or parse(arguments)


def _train_all(configs: list[RunSettings]) -> int:
    """Train runs one after the other; return the exit code of the last, or the first that failed.

    Settings or data that one run refuses, and a signal, end all.
    """
    failed = 0
    for number, config in enumerate(configs, start=1):
        if len(configs) > 1:
            print(f"\n--- run {number} of {len(configs)}: {config.run}", flush=True)
        code = _train(config)
        if code not in (0, 1):
            return code
        failed = failed or code
    return failed


def _train(config: RunSettings) -> int:
    keep_freed_memory()
    # JAX takes seconds to import: --help and refused settings do not wait for it.
    import jax

    keep_programs()
    from eqfuse import ops
    from eqfuse.train import molecule, tetris
    from eqfuse.train.device.parallel import find_devices, matmul_precision

    def task():
        try:
            devices = find_devices(getattr(config, "devices", "1"))
            ops.resolve_here(config.backend)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        precision = matmul_precision(config.precision, config.dtype, jax.devices()[0])
        x64 = jax.enable_x64(config.dtype == "float64")
        kind = molecule if isinstance(config, Config) else tetris
        with x64, jax.default_matmul_precision(precision), _printing(devices.is_main):
            kind.run(config, devices)

    return exit_code(task)


@contextlib.contextmanager
def _printing(wanted: bool):
    """Return a context in which what is printed is seen, or not."""
    if wanted:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
