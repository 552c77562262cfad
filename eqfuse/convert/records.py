"""Files of torch and torch.package, read with NumPy: nothing in them is executed.

Such a file is a zip archive of a pickle and the bytes of its tensors. A pickle is a program that
may call any function of any module. Here every name that it asks for is an inert `Record`, which
keeps what it was called with and does nothing.
"""

import contextlib
import dataclasses
import io
import math
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator

import numpy as np

from eqfuse.convert.converted import ConvertError, refuse
from eqfuse.runs.files import require_regular, room_of

_DTYPES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "?",
}
_OLD_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
"""The first bytes of torch's own format from before version 1.6."""


class Record:
    """An object of a pickle: the arguments and the state that it was given."""

    kind = "?"  # the name of its class or function, with that of the module

    def __new__(cls, *args, **kwargs):
        self = super().__new__(cls)
        self.args, self.state = args, {}  # the state of a module of torch is a dict
        return self

    def __init__(self, *args, **kwargs):
        """Accept any arguments."""

    def __setstate__(self, state):
        self.state = state

    def __call__(self, *args, **kwargs):
        return Record(*args)

    def append(self, *items):
        """Accept items of a list or dict."""

    extend = __setitem__ = add = append

    def __hash__(self):
        return id(self)

    @property
    def name(self) -> str:
        return self.kind.rpartition(".")[2]

    def get(self, name: str, default=None):
        """Return an attribute, a submodule, or an array; the name has dots for submodules."""
        item = self
        for part in name.split("."):
            item = _attribute(item, part)
            if item is None:
                return default
        return value(item)

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays of a list of parameters, whose names are 0, 1, ..."""
        result = []
        while (item := self.get(str(len(result)))) is not None:
            result.append(item)
        return result

    def submodules(self) -> dict[str, "Record"]:
        """Return the submodules by their names, in order."""
        modules = _part(self, "_modules")
        return {name: m for name, m in modules.items() if isinstance(m, Record)}

    def children(self) -> list["Record"]:
        """Return the submodules, in order."""
        return list(self.submodules().values())


_MOST_TEXT = 4 * 2**20
"""Bytes of a pickle: those of the largest published networks are below 1 MB."""


_MOST_REPEATED = 2**20
"""Numbers of a tensor that has fewer in the file."""


class _Archive(zipfile.ZipFile):
    """A zip archive that has a limit of what all its parts together may be inflated to."""

    def __init__(self, path):
        super().__init__(path)
        self.room = room_of(os.path.getsize(path))

    def content(self, name: str, most: float = _MOST_TEXT) -> bytes:
        """Return a part, or refuse one that is larger than it has a reason to be."""
        size = self.getinfo(name).file_size
        if size > most:
            raise ConvertError(f"{name} has {size} bytes, of {most:.0f} at most: it is no network")
        self.take(name, size)
        return self.read(name)

    def take(self, what: str, size: int):
        """Note memory that is asked for, bytes."""
        self.room -= size
        if self.room < 0:
            raise ConvertError(f"{self.filename}: {what} takes much more memory than the file has")


@dataclasses.dataclass(frozen=True)
class Storage:
    """The bytes of one or several tensors."""

    dtype: str
    data: bytes
    take: Callable[[str, int], None] = lambda *_: None  # of its archive


def read_module(path) -> Record:
    """Read a file of `torch.save(module, path)`."""
    found = read_saved(path)
    if not isinstance(found, Record):
        hint = ": it looks like a checkpoint of parameters alone" if isinstance(found, dict) else ""
        raise ConvertError(
            f"{path} holds a {type(found).__name__}, not a network{hint}; give the .model file "
            "that mace writes at the end of a training"
        )
    return found


def read_saved(path):
    """Read what `torch.save(anything, path)` wrote: plain values, and the rest as records."""
    with _archive(path, "is not a file of torch.save", "data.pkl") as (archive, root):
        names = archive.namelist()
        if f"{root}constants.pkl" in names:
            raise ConvertError(
                f"{path} is compiled (TorchScript); give the file that was saved beside it, whose "
                "name does not end in _compiled.model or -lammps.pt; of nequip, a .nequip.zip of "
                "nequip 0.7 or later"
            )
        if f"{root}byteorder" in names and archive.content(f"{root}byteorder") != b"little":
            raise ConvertError(
                f"{path} was written on a big-endian machine, which is not supported"
            )
        return _unpickled(archive, root, path)


def read_package(path) -> Record:
    """Read the network of a package of nequip, a file of `torch.package`."""
    what = (
        "is no package of nequip (.nequip.zip); of a checkpoint, `nequip-package build FILE.ckpt "
        "NAME.nequip.zip` of nequip 0.7 or later makes one"
    )
    with _archive(path, what, name := "model/eager_model.pkl") as (archive, root):
        return _unpickled(archive, root, path, name, ".data/{}.storage")


@contextlib.contextmanager
def _archive(path, what: str, pickle_name: str) -> Iterator[tuple[_Archive, str]]:
    """Open a zip archive, and find the folder of its one pickle of this name.

    One that is damaged or something else is refused; the message is `what`, after the path.
    """
    try:
        require_regular(path)
        with open(path, "rb") as file:
            start = file.read(len(_OLD_MAGIC))
        if start == _OLD_MAGIC:
            raise ConvertError(
                f"{path} has the format of torch before 1.6; load it once with a newer torch and "
                "save it again by torch.save(torch.load(FILE), NEW)"
            )
        with _Archive(path) as archive:
            found = [name for name in archive.namelist() if name.endswith(f"/{pickle_name}")]
            if len(found) != 1:
                raise ConvertError(f"{path} {what}")
            yield archive, found[0].removesuffix(pickle_name)
    except OSError as error:
        raise ConvertError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, RuntimeError) as error:
        raise ConvertError(f"{path} {what}: {error}") from error


def _unpickled(archive, root: str, path, name: str = "data.pkl", data: str = "data/{}"):
    """Read a pickle of an archive, whose tensors have their bytes at `data`, by their key."""
    try:
        return _Unpickler(archive, root, name, data).load()
    except ConvertError:
        raise
    except Exception as error:  # damaged or malicious files fail in many ways
        raise ConvertError(f"{path} is damaged, or no pickle of torch: {error}") from error


def _plain(key):
    """Return a key of a dict; refuse one with containers in it, whose hash may never end."""
    if isinstance(key, tuple) and any(isinstance(item, tuple) for item in key):
        raise ConvertError("a key of a dict holds containers: it is no network")
    return key


class _Dict(dict):
    """An OrderedDict; those of parameters carry metadata, which is left out."""

    def __init__(self, items=()):
        super().__init__((_plain(key), item) for key, item in items)

    def __setstate__(self, state):
        """Accept whatever the pickle holds."""


class _Unpickler(pickle._Unpickler):
    """The unpickler in Python: its memo is a dict, in which a large index takes no memory.

    It makes only the containers of a state dict: a set is a record, and no size is believed.
    """

    dispatch = pickle._Unpickler.dispatch.copy()
    del dispatch[pickle.BYTEARRAY8[0]]

    def __init__(self, archive: _Archive, root: str, name: str, data: str):
        super().__init__(io.BytesIO(archive.content(root + name)))
        self._archive, self._data, self._kinds, self._storages = archive, root + data, {}, {}

    def _load_set(self):
        self.append(self._kind("builtins.set")())

    def _load_frozenset(self):
        self.pop_mark()
        self._load_set()

    def _load_item(self):
        _plain(self.stack[-2])
        self.load_setitem()

    def _load_items(self):
        [*map(_plain, self.stack[::2])]
        self.load_setitems()

    def _load_dict(self):
        [*map(_plain, self.stack[::2])]
        self.load_dict()

    dispatch |= {pickle.EMPTY_SET[0]: _load_set, pickle.FROZENSET[0]: _load_frozenset}
    dispatch |= {pickle.SETITEM[0]: _load_item, pickle.SETITEMS[0]: _load_items}
    dispatch[pickle.DICT[0]] = _load_dict

    def find_class(self, module, name):
        """Return a class of records for any name but that of a dict, which does nothing."""
        if (module, name) == ("collections", "OrderedDict"):
            return _Dict
        if (module, name) == ("builtins", "getattr"):
            return self._named
        return self._kind(f"{module}.{name}")

    def _kind(self, kind: str) -> type:
        if kind not in self._kinds:
            self._kinds[kind] = type("Record", (Record,), {"kind": kind})
        return self._kinds[kind]

    def _named(self, owner, *names):
        """Return a function that the pickle names by its class, as newer versions of torch do."""
        if isinstance(owner, type) and issubclass(owner, Record) and len(names) == 1:
            return self.find_class(owner.kind, names[0])
        return self._kind("builtins.getattr")(owner, *names)

    def persistent_load(self, pid):
        """Return the storage that the pickle names: ("storage", class, key, device, count)."""
        _, storage, key, _, count, *_ = pid
        if not isinstance(key, str | int):  # a number in packages
            raise ConvertError("a storage has no name: it is no network")
        if key not in self._storages:
            kind = storage.kind.rpartition(".")[2]
            if kind not in _DTYPES:
                refuse(f"tensors of {kind}")
            size = count * np.dtype(_DTYPES[kind]).itemsize
            data = self._archive.content(self._data.format(key), size)
            self._storages[key] = Storage(_DTYPES[kind], data, self._archive.take)
        return self._storages[key]


def value(item):
    """Return an array for a tensor or a number of NumPy, and anything else as it is."""
    if not isinstance(item, Record):
        return item
    if item.kind.startswith("torch._tensor._rebuild_from_type"):
        function, _, args, *_ = item.args
        return value(function(*args))
    if item.kind.startswith("torch._utils._rebuild_parameter"):
        return value(item.args[0])
    if item.kind == "torch._utils._rebuild_tensor_v2":
        return _array(*item.args[:4])
    if item.kind.endswith("multiarray.scalar"):  # of numpy.core, or numpy._core
        dtype, data = item.args
        if isinstance(data, Record):  # bytes as Python 2 wrote them: text and its encoding
            text, encoding = data.args
            data = text.encode(encoding)
        return np.frombuffer(data, np.dtype(str(dtype.args[0])))[0]
    return item


def _array(storage: Storage, offset: int, size: tuple, stride: tuple) -> np.ndarray:
    flat = np.frombuffer(storage.data, storage.dtype)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    fits = offset >= 0 and all(n >= 0 for n in size) and all(step >= 0 for step in stride)
    if math.prod(size) == 0:
        return np.zeros(size, flat.dtype)
    # strides from a file could reach any memory, or one number many times
    if not fits or last >= len(flat) or math.prod(size) > max(len(flat), _MOST_REPEATED):
        raise ConvertError(
            f"a tensor of shape {tuple(size)} reaches beyond its {len(flat)} numbers: the file is "
            "damaged"
        )
    storage.take("a tensor", max(math.prod(size) - len(flat), 0) * flat.itemsize)
    strides = [step * flat.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(flat[offset:], size, strides).copy()


def _attribute(item, name: str):
    if isinstance(item, Record):
        for part in ("_parameters", "_buffers", "_modules"):
            inner = _part(item, part)
            if inner.get(name) is not None:
                return inner[name]
        item = item.state
    return item.get(name) if isinstance(item, dict) else None


def _part(record: Record, name: str) -> dict:
    state = record.state if isinstance(record.state, dict) else {}
    part = state.get(name)
    return part if isinstance(part, dict) else {}
