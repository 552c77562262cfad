"""Training: from Python as by `eqfuse train`, and the networks of runs.

    >>> class Short(train.Callback):
    ...     def on_start(self, folder, settings):
    ...         print(settings["model"]["name"])
    >>> settings = ["data=ethanol", "data.train=8", "channels=4", "layers=1", "steps=2"]
    >>> train.parse(settings).model.channels
    4
    >>> folder = train.fit(*settings, run="first", callbacks=[Short()])
    data       ethanol, embedded
    ...
    nequip
    ...
    >>> module, params, metadata = train.load_run(folder)
    >>> train.read_metadata(folder)["species"] == metadata["species"] == [1, 6, 8]
    True
    >>> train.Dispersion.of_run(metadata), train.duration(125)
    (None, '2m 05s')

It raises `CheckpointError`, `ConfigError`, `Interrupted` and `TrainingFailed`:

    >>> try:
    ...     train.fit("data=ethanol", layers=-1)
    ... except train.ConfigError as error:
    ...     print(error)
    model.layers=-1 is impossible: it must be finite and greater than zero
    >>> try:
    ...     train.load_run("second")
    ... except train.CheckpointError as error:
    ...     print(str(error).replace(os.getcwd(), "here"))
    here/second has no checkpoint (best or last); there is no such file or folder
    >>> [issubclass(kind, RuntimeError) for kind in (train.Interrupted, train.TrainingFailed)]
    [False, True]
"""

from eqfuse._late import late

_LATE = {
    "eqfuse.runs.checkpoint": "load_run read_metadata",
    "eqfuse.runs.errors": "CheckpointError ConfigError Interrupted TrainingFailed",
    "eqfuse.train.arguments": "parse",
    "eqfuse.train.dispersion": "Dispersion",
    "eqfuse.train.main": "fit",
    "eqfuse.train.results": "Callback",
    "eqfuse.train.terminal": "duration",
}
__all__, __getattr__, __dir__ = late(__name__, _LATE)
