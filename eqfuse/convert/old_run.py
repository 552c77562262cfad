"""Rewrite the folder of a run of an earlier version, whose checkpoints were written by orbax."""

import hashlib
import shutil
from pathlib import Path

import jax
import numpy as np

from eqfuse.convert.errors import ConvertError
from eqfuse.train.run.checkpoint import named_arrays
from eqfuse.train.run.files import FILES, encode, write_whole

OLD_FORMAT = 3


def convert_run(old, new) -> list[str]:
    """Write a run of an earlier version to a folder that this version reads and goes on with.

    It needs the package orbax-checkpoint.

    Args:
      old: the run's folder; it stays as it is.
      new: the folder to write, which must not exist.
    Returns:
      The names of its checkpoints, of "best" and "last".
    Raises:
      ConvertError: no run of an earlier version, damaged checkpoints, or orbax-checkpoint missing.
    """
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ConvertError(
            "a run of an earlier version is read by the package orbax-checkpoint: "
            "pip install orbax-checkpoint"
        ) from error
    old, new = Path(old).expanduser().resolve(), Path(new).expanduser()
    if new.exists():
        raise ConvertError(f"{new} exists already and is not overwritten; name another folder")
    folders = {name: old / "checkpoints" / name for name in FILES}
    contents = {n: _newest(ocp, path) for n, path in folders.items() if path.is_dir()}
    if not contents:
        raise ConvertError(f"{old} holds no run of an earlier version")
    # under its name when it is whole
    part = new.with_name(f"{new.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        shutil.copytree(old, part, ignore=shutil.ignore_patterns("checkpoints", ".lock"))
        (part / "checkpoints").mkdir()
        for name, content in contents.items():
            write_whole(part / "checkpoints" / FILES[name][0], content)
        part.rename(new)
    except OSError as error:
        raise ConvertError(f"{new} cannot be written: {error.strerror}") from error
    return list(contents)


def _newest(ocp, path: Path) -> bytes:
    """Return the newest checkpoint of a folder that is whole, as the content of a new file."""
    problem = None
    for serial in sorted(ocp.utils.checkpoint_steps(path), reverse=True):
        try:
            return _converted(ocp, path, serial)
        except Exception as error:  # orbax and tensorstore raise many types on broken files
            problem = problem or error
    if problem is None:
        raise ConvertError(f"{path} has no checkpoint of an earlier version")
    line = next(iter(str(problem).splitlines()), type(problem).__name__)[:300]
    raise ConvertError(f"the checkpoints in {path} are damaged: {line}") from problem


def _converted(ocp, path: Path, serial: int) -> bytes:
    with ocp.CheckpointManager(path, options=ocp.CheckpointManagerOptions(create=False)) as manager:
        restored = manager.restore(serial, args=ocp.args.Composite(metadata=ocp.args.JsonRestore()))
        metadata = dict(restored["metadata"])
        if metadata.pop("format") != OLD_FORMAT:
            raise ConvertError(f"{path / str(serial)} has an unknown format")
        digests = metadata.pop("arrays_sha256")
        del metadata["sha256"]
        arguments = {name: ocp.args.StandardRestore() for name in digests}
        groups = manager.restore(serial, args=ocp.args.Composite(**arguments))
    if _digest(groups["params"]) != digests["params"]:
        raise ConvertError("params has changed")
    arrays = {}
    for name in digests:
        arrays |= named_arrays(name, groups[name])
    return encode(arrays, metadata)


def _digest(tree) -> str:
    """Return the SHA-256 that the earlier version wrote of a tree of arrays."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        digest.update(f"{leaf.dtype} {leaf.shape} ".encode())
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()
