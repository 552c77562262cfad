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
    ...     wait: float = runs.setting(0.0, "seconds", runs.NOT_NEGATIVE)
    ...     shift: float = runs.setting(0.0, "of nothing", runs.FINITE)
    ...     even: int = runs.setting(0, "a number", runs.Range(lambda k: k % 2 == 0, "even"))
    ...     types: str | None = runs.setting(None, runs.TYPES)
    ...     backend: str = runs.setting("xla", runs.BACKEND)
    ...     dispersion: str | None = runs.setting(None, runs.DISPERSION)
    ...
    ...     def __post_init__(self):
    ...         runs.check_ranges(self, "")
    ...         runs.require(len(self.text) < 9, "TEXT", self.text, "shorter")
    ...         runs.one_of("backend", self.backend, ("xla",))
    >>> def repeat(options):
    ...     with runs.StopRequest() as stop:
    ...         runs.write_whole(options.path, options.times * options.text)
    ...     runs.say(f"{runs.written(stop.signum)} stopped it")
    ...     runs.give_back()  # memory that is free
    >>> command.run(Repeat, repeat, ["ab", "times=2"])
    null stopped it
    0
    >>> for wrong in ({"even": 3}, {"times": 0}, {"backend": "x"}):
    ...     with contextlib.suppress(runs.ConfigError):
    ...         Repeat("ab", **wrong)

What it cannot do ends with a line and a code, and what it made is in a folder of its own:

    >>> def fails():
    ...     with runs.naming("a.txt"):
    ...         raise runs.ConfigError("it is empty")
    >>> runs.exit_code(fails)
    2
    >>> [issubclass(e, ValueError) for e in (runs.CheckpointError, runs.TrainingFailed)]
    [True, False]
    >>> runs.Interrupted(15, "stopped").signum
    15
    >>> runs.require_free("first")
    >>> folder = runs.made("first", "run")
    >>> with runs.locked(folder), runs.Log() as log:
    ...     log.begin(folder, new=True)
    ...     runs.warn("it is short")
    >>> log.warnings, [*runs.machine()]
    (['it is short'], ['machine', 'versions'])
    >>> runs.write_table(folder / "metrics.csv", [{"step": 1}])
    >>> runs.read_table(folder / "metrics.csv", ["step"])
    [{'step': '1'}]
    >>> runs.set_aside(folder / "metrics.csv").name, runs.Frames(folder / "a.traj").frames
    ('metrics.csv.damaged', [])
    >>> runs.has_checkpoint(folder, "best"), runs.head_file(folder, None)
    (False, PosixPath('first'))
    >>> runs.write_whole(folder / "one", runs.encode({"x": np.ones(2)}, {"of": "an example"}))
    >>> arrays, metadata = runs.read_file(folder / "one")
    >>> arrays["x"], metadata["of"]
    (array([1., 1.]), 'an example')
    >>> runs.require_regular(folder / "one")
    >>> runs.require_here(folder / "one")
    >>> runs.write_whole(folder / "a.json", '{"a": 1}')
    >>> np.savez(folder / "a.npz", a=1)
    >>> runs.read_json(folder / "a.json"), runs.read_arrays(folder / "a.npz")
    ({'a': 1}, {'a': array(1)})
"""

from eqfuse._late import late

_LATE = {
    "eqfuse.runs.errors": "CheckpointError ConfigError Interrupted TrainingFailed naming",
    "eqfuse.runs.files": "encode has_checkpoint head_file locked made read_arrays read_file "
    "read_json read_table require_free require_here require_regular set_aside write_table "
    "write_whole",
    "eqfuse.runs.frames": "Frames",
    "eqfuse.runs.log": "Log machine say warn",
    "eqfuse.runs.process": "give_back",
    "eqfuse.runs.schema": "BACKEND DISPERSION FINITE NOT_NEGATIVE POSITIVE Range TYPES absolute "
    "check_ranges one_of require setting word written",
    "eqfuse.runs.stopping": "StopRequest exit_code",
}
__all__, __getattr__, __dir__ = late(__name__, _LATE)
