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
    >>> with runs.Log() as log:
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
    "BACKEND": "eqfuse.runs.schema",
    "CheckpointError": "eqfuse.runs.errors",
    "ConfigError": "eqfuse.runs.errors",
    "DISPERSION": "eqfuse.runs.schema",
    "FINITE": "eqfuse.runs.schema",
    "Frames": "eqfuse.runs.frames",
    "Interrupted": "eqfuse.runs.errors",
    "Log": "eqfuse.runs.log",
    "NOT_NEGATIVE": "eqfuse.runs.schema",
    "POSITIVE": "eqfuse.runs.schema",
    "Range": "eqfuse.runs.schema",
    "StopRequest": "eqfuse.runs.stopping",
    "TYPES": "eqfuse.runs.schema",
    "TrainingFailed": "eqfuse.runs.errors",
    "absolute": "eqfuse.runs.schema",
    "check_ranges": "eqfuse.runs.schema",
    "encode": "eqfuse.runs.files",
    "exit_code": "eqfuse.runs.stopping",
    "give_back": "eqfuse.runs.process",
    "has_checkpoint": "eqfuse.runs.files",
    "head_file": "eqfuse.runs.files",
    "machine": "eqfuse.runs.log",
    "made": "eqfuse.runs.files",
    "naming": "eqfuse.runs.errors",
    "one_of": "eqfuse.runs.schema",
    "read_arrays": "eqfuse.runs.files",
    "read_file": "eqfuse.runs.files",
    "read_json": "eqfuse.runs.files",
    "read_table": "eqfuse.runs.files",
    "require": "eqfuse.runs.schema",
    "require_free": "eqfuse.runs.files",
    "require_here": "eqfuse.runs.files",
    "require_regular": "eqfuse.runs.files",
    "say": "eqfuse.runs.log",
    "set_aside": "eqfuse.runs.files",
    "setting": "eqfuse.runs.schema",
    "warn": "eqfuse.runs.log",
    "word": "eqfuse.runs.schema",
    "write_table": "eqfuse.runs.files",
    "write_whole": "eqfuse.runs.files",
    "written": "eqfuse.runs.schema",
}
__all__ = [*_LATE]
__getattr__, __dir__ = late(__name__, _LATE)
