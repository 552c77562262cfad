"""The command `eqfuse distill`."""

import functools
from pathlib import Path

from eqfuse.distill.settings import CHANGEABLE, Distill, settings_of
from eqfuse.runs import CheckpointError, ConfigError, command


def main(arguments: list[str]) -> int:
    """Distill; return 1 if the teacher or the training failed, 2 if settings are refused."""
    task = functools.partial(_distill, arguments)
    return command.run(Distill, task, arguments, refused=(CheckpointError,))


def _distill(arguments: list[str], settings: Distill):
    folder = None
    if settings.resume is not None:
        words, given = command.words_and_settings(Distill, arguments)
        folder = Path(given.pop("resume")).expanduser()
        others = [name for name in given if name not in (*CHANGEABLE, "python")]
        if others := words[1:] + others:
            raise ConfigError(
                f"{others[0]}: resume= goes on with the settings of its folder, and takes only "
                f"{', '.join(CHANGEABLE)}, and the TEACHER with its python="
            )
        settings = settings_of(folder, *words, **given)
    if None in (settings.teacher, settings.start):
        missing = "TEACHER" if settings.teacher is None else "START"
        raise ConfigError(f"{missing} is missing: eqfuse distill TEACHER START; see --help")
    from eqfuse.distill.rounds import Distillation  # with JAX, which takes seconds

    Distillation(settings, folder).run()
