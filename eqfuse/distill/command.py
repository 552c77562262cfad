"""The command `eqfuse distill`."""

from pathlib import Path

from eqfuse.distill.settings import CHANGEABLE, Distill, settings_of
from eqfuse.runs import CheckpointError, ConfigError, command


@command.of(Distill, refused=(CheckpointError,), read=list)
def main(arguments: list[str]):
    """Distill; return 1 if the teacher or the training failed, 2 if settings are refused."""
    words, given = command.words_and_settings(Distill, arguments)
    if (folder := given.pop("resume", None)) is None:
        settings = command.parse(Distill, arguments)
    else:
        folder = Path(folder).expanduser()
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
