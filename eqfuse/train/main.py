"""The command: arguments in, exit code out."""

import datetime
import os
from collections.abc import Sequence
from pathlib import Path

from eqfuse import data
from eqfuse.runs import command
from eqfuse.runs.errors import ConfigError
from eqfuse.runs.files import FRAMES, require_free, require_locks
from eqfuse.runs.process import give_back, keep_freed_memory, keep_memory
from eqfuse.runs.schema import written
from eqfuse.runs.stopping import exit_code
from eqfuse.train.arguments import parse, parse_all
from eqfuse.train.settings.config import Config
from eqfuse.train.settings.options import help_text, presets, to_yaml


def main(arguments: list[str]) -> int:
    """Run what the arguments ask for; return the code of `exit_code`."""
    shown = "--cfg" in arguments
    settings = [argument for argument in arguments if argument != "--cfg"]
    how = {"refused": (), "read": parse_all, "text": help_text}
    return command.run(Config, _show if shown else _train_all, settings, **how)


def _show(configs: list[Config]):
    texts, known = [], presets()
    for config in configs:
        name = f"preset={config.preset}"
        text = known.get(f"model={config.model.name} {name}")
        texts.append((f"# {name}: {text}\n" if text else "") + to_yaml(config))
    print("---\n".join(texts), end="")


def _train_all(configs: list[Config]) -> int:
    """Train runs one after the other; return the exit code of the last, or the first that failed.

    Settings or data that one run refuses, and a signal, end all.
    """
    failed = 0
    keep_freed_memory()
    for number, config in enumerate(configs, start=1):
        if len(configs) > 1:
            print(f"\n--- run {number} of {len(configs)}: {config.run}", flush=True)
        code = exit_code(lambda config=config: _run(config) and 0)
        if code not in (0, 1):
            return code
        failed = failed or code
    return failed


def fit(*settings: str, callbacks: Sequence = (), **more) -> Path:
    """Train a network as `eqfuse train` does; print as it goes, with a bar in a notebook, too.

        folder = eqfuse.train.fit("data.val=0.2", data="train.xyz", channels=16, run="first")

    Args:
      settings: as on the command line, such as "training.second_stage=null".
      callbacks: see `eqfuse.train.Callback`.
      more: settings whose names have no dot; values are as on the command line, or Python's. `data`
        may be several files, or `ase.Atoms` in any form, which are kept in the folder of the run.
    Returns:
      the folder of the run, which `eqfuse.Calculator`, `eqfuse.predict` and `load_run` take.
    Raises:
      ConfigError, eqfuse.data.DataError: settings or data that are refused.
      TrainingFailed: such as a loss that is not finite.
      Interrupted: by Ctrl-C, after a checkpoint.
    """
    if not isinstance(more.get("data"), str | os.PathLike | None):
        more = _with_frames_written(settings, more)
    arguments = [*settings, *(f"{name}={written(value)}" for name, value in more.items())]
    config = parse(arguments)
    keep_memory()
    try:
        return _run(config, callbacks)
    finally:
        give_back()


def _with_frames_written(settings: Sequence[str], given: dict) -> dict:
    """Return settings of which `data` names files; `ase.Atoms` are in the folder of the run."""
    import ase.io

    from eqfuse.data.readers.ase_files import for_trajectory
    from eqfuse.data.readers.format import require_file

    def named(path) -> list[str]:
        require_file(data.indexed(path)[0])
        return [os.fspath(path)]

    frames = data.frames_of(given["data"], named)
    if all(isinstance(frame, str) for frame in frames):
        return given | {"data": ",".join(frames)}
    if not all(isinstance(frame, ase.Atoms) for frame in frames):
        raise ConfigError("data must be names of files, or ase.Atoms, one or several")
    runs = [given.get("run"), *(s.partition("run=")[2] for s in settings if s.startswith("run="))]
    run = next(filter(None, runs), f"runs/{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}_fit")
    run = os.path.expanduser(run)
    require_free(run)
    file = Path(run) / FRAMES
    file.parent.mkdir(parents=True, exist_ok=True)
    ase.io.write(file, [for_trajectory(frame) for frame in frames])
    return given | {"data": str(file), "run": run}


def _run(config: Config, callbacks: Sequence = ()) -> Path:
    require_locks()
    # JAX takes seconds to import: --help and refused settings do not wait for it.
    from eqfuse.train.molecule import run

    return run(config, callbacks)
