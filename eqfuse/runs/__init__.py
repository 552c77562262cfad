"""What commands share: folders and files of runs, errors, exit codes, settings, the log.

A command is a dataclass with a `word` for what has its place and a `setting` for the rest:

    >>> import dataclasses
    >>> @dataclasses.dataclass
    ... class Repeat:
    ...     'Write a text.'
    ...
    ...     text: str = runs.word("to write")
    ...     path: str = runs.setting("a.txt", "to write to", convert=runs.absolute)
    ...     times: int = runs.setting(1, "of the text", runs.POSITIVE)
    ...
    ...     def __post_init__(self):
    ...         runs.check_ranges(self, "")
    ...         runs.require(len(self.text) < 9, "TEXT", self.text, "shorter")
    >>> def repeat(options):
    ...     runs.write_whole(options.path, options.times * options.text)
    >>> [command.run(Repeat, repeat, ["ab", f"times={times}"]) for times in (2, 0)]
    [0, 2]

What it cannot do ends with a line and a code, and what it made is in a folder of its own:

    >>> def fails():
    ...     with runs.naming("a.txt"):
    ...         raise runs.ConfigError("it is empty")
    >>> runs.exit_code(fails)
    2
    >>> folder = runs.made("first", "run")
    >>> with runs.Log() as log:
    ...     log.begin(folder, new=True)
    ...     runs.warn("it is short")
    >>> log.warnings
    ['it is short']
    >>> runs.write_whole(folder / "one", runs.encode({"x": np.ones(2)}, {"of": "an example"}))
    >>> arrays, metadata = runs.read_file(folder / "one")
    >>> arrays["x"], metadata["of"]
    (array([1., 1.]), 'an example')
"""

from eqfuse._late import late

_LATE = {
    "eqfuse.runs.errors": "CheckpointError ConfigError Interrupted TrainingFailed naming",
    "eqfuse.runs.files": "encode has_checkpoint head_file made read_arrays read_file read_json "
    "read_table require_free require_here require_regular set_aside write_table write_whole",
    "eqfuse.runs.frames": "Frames",
    "eqfuse.runs.log": "Log machine say warn",
    "eqfuse.runs.process": "give_back",
    "eqfuse.runs.schema": "BACKEND DISPERSION FINITE NOT_NEGATIVE POSITIVE Range TYPES absolute "
    "check_ranges one_of require setting word written",
    "eqfuse.runs.stopping": "StopRequest exit_code",
}
__all__, __getattr__, __dir__ = late(__name__, _LATE)
