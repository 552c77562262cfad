"""Files that torch has saved, and others, read without executing anything."""

import io
import os
import pickle
import resource
import tracemalloc
import zipfile

import numpy as np
import pytest

from eqfuse.convert import ConvertError, convert
from eqfuse.convert.records import Record, Storage, read_module, read_saved, value


def write(path, data, **others):
    """Return a zip archive like that of torch.save."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", data)
        for name, content in others.items():
            archive.writestr(f"a/{name}", content)
    return path


class Harm:
    """What its pickle would do when it is read."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("where", ["alone", "in a module"])
def test_nothing_in_a_file_is_executed(where, tmp_path, network):
    trace = tmp_path / "trace"
    harm = [Harm(os.mkdir, str(trace)), Harm(eval, f"__import__('os').mkdir({str(trace)!r})")]
    path = write(tmp_path / "harm.model", pickle.dumps(harm[0] if where == "alone" else harm))
    with pytest.raises(ConvertError, match=r"only MACE and ScaleShiftMACE|not a network"):
        convert("mace", path, tmp_path / "run")
    assert not trace.exists()
    assert not (tmp_path / "run").exists()
    # it would have been done by pickle itself
    pickle.loads(pickle.dumps(harm[0]))
    assert trace.exists()


def test_no_name_of_a_pickle_is_looked_up(tmp_path):
    for function in (os.system, eval, getattr, open):
        path = write(tmp_path / "any.model", pickle.dumps(Harm(function, "true")))
        found = read_module(path)
        assert isinstance(found, Record)
        assert found.name == function.__name__
        assert found.args == ("true",)


def test_function_named_by_a_class_is_that_function(tmp_path):
    """Torch 2.13 writes its tanh as getattr(torch._C._VariableFunctionsClass, "tanh")."""
    named = b"cbuiltins\ngetattr\n(ctorch._C\n_VariableFunctionsClass\nVtanh\ntR."
    path = write(tmp_path / "any.pt", b"\x80\x02]" + named[:-1] + b"a.")
    (found,) = read_saved(path)
    assert found.kind == "torch._C._VariableFunctionsClass.tanh"
    assert issubclass(found, Record)


TENSOR = type("R", (Record,), {"kind": "torch._utils._rebuild_tensor_v2"})


BEYOND = [(0, (5,), (1,)), (3, (2,), (1,)), (0, (2, 2), (3, 1)), (-1, (2,), (1,))]
BEYOND += [(3, (2,), (-1,)), (0, (2**33,), (0,))]  # of which the last is 64 GiB of 32 bytes


@pytest.mark.parametrize(("offset", "size", "stride"), BEYOND)
def test_tensors_do_not_reach_beyond_their_storage(offset, size, stride):
    storage = Storage("<f8", np.arange(4.0).tobytes())
    with pytest.raises(ConvertError, match="reaches beyond its 4 numbers"):
        value(TENSOR(storage, offset, size, stride))
    inside = value(TENSOR(storage, 1, (2,), (2,)))
    np.testing.assert_array_equal(inside, [1.0, 3.0])


DEEP = b"K\x01" + 80 * b"q\x00h\x00\x86"
"""A tuple of two tuples of two tuples ..., whose hash takes 2^80 steps."""


@pytest.mark.parametrize(
    "data",
    [
        b"}" + DEEP + b"K\x01s.",
        b"}(" + DEEP + b"K\x01u.",
        b"(" + DEEP + b"K\x01d.",
        b"ccollections\nOrderedDict\n](" + DEEP + b"K\x01ta\x85R.",
        b"\x96" + (1 << 34).to_bytes(8, "little") + b".",
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + DEEP + b"K\x01K\x01tQ.",
    ],
)
def test_containers_that_no_network_has_are_refused(data, tmp_path):
    with pytest.raises(ConvertError, match=r"no network|damaged"):
        read_saved(write(tmp_path / "deep.model", b"\x80\x05" + data))


@pytest.mark.parametrize(
    "data",
    [
        b"\x8f(" + DEEP + b"\x90.",
        b"(" + DEEP + b"\x91.",
        b"cbuiltins\nset\n](" + DEEP + b"ta\x85R.",
        b"Nr\xff\xff\xff\x0f0cbuiltins\nset\n.",
    ],
    ids=["set", "frozenset", "set by name", "memo"],
)
def test_sets_and_indices_take_no_time_and_no_memory(data, tmp_path):
    path = write(tmp_path / "deep.model", b"\x80\x05" + data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = read_saved(path)
    assert (found if isinstance(found, type) else type(found)).kind.startswith("builtins.")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 10**5  # kB


def test_parts_are_not_inflated_to_many_times_the_file(tmp_path):
    """A storage that is deflated, as torch writes none; and many tensors of one number."""
    kind = b"(X\x07\x00\x00\x00storagectorch\nDoubleStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    data = b"\x80\x02" + kind + b"J" + (1 << 23).to_bytes(4, "little") + b"tQ."
    with zipfile.ZipFile(path := tmp_path / "b.model", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", data)
        archive.writestr("a/data/0", bytes(1 << 26))
    with pytest.raises(ConvertError, match=r"b\.model: a/data/0 takes much more memory"):
        read_saved(path)
    one = b"\x80\x02" + kind + b"K\x01tQ."
    storage = read_saved(write(tmp_path / "c.model", one, **{"data/0": bytes(8)}))
    assert value(TENSOR(storage, 0, (4, 4), (0, 0))).shape == (4, 4)
    with pytest.raises(ConvertError, match="a tensor takes much more memory"):
        value(TENSOR(storage, 0, (2**19,), (0,)))


def test_half_precision_is_refused_by_name(tmp_path):
    """Its couplings and constants are so rounded that they were called those of another network."""
    kind = b"(X\x07\x00\x00\x00storagectorch\nHalfStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    path = write(tmp_path / "a.model", b"\x80\x02" + kind + b"K\x01tQ.", **{"data/0": bytes(2)})
    with pytest.raises(ConvertError, match="the network has tensors of HalfStorage, which"):
        read_saved(path)


def test_files_that_grow_when_they_are_read_are_refused(tmp_path):
    path = tmp_path / "bomb.model"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(100 << 20))
    tracemalloc.start()
    with pytest.raises(ConvertError, match=r"a/data.pkl has 104857600 bytes, of .* at most"):
        read_module(path)
    assert tracemalloc.get_traced_memory()[1] < 1e7
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path, _: path.write_bytes(b"no archive"), "is not a file of torch.save"),
        (lambda path, whole: path.write_bytes(whole[: len(whole) // 2]), "not a file of torch"),
        (lambda path, _: path.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2)), "before 1.6"),
        (lambda path, _: write(path, b"\x80\x02broken"), "is damaged, or no pickle"),
        (lambda path, _: write(path, pickle.dumps({"model": 1})), "holds a dict, not a network"),
        (lambda path, _: write(path, b"", **{"constants.pkl": b""}), "is compiled .TorchScript."),
        (lambda path, _: write(path, b"", byteorder=b"big"), "big-endian"),
        (lambda path, _: None, "cannot be read: No such file"),
    ],
    ids=["text", "cut off", "old", "damaged", "checkpoint", "compiled", "big-endian", "absent"],
)
def test_other_files_are_refused(make, message, model_file, tmp_path):
    path = tmp_path / "file.model"
    make(path, model_file("small").read_bytes())
    with pytest.raises(ConvertError, match=message) as caught:
        read_module(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tensor_that_is_absent_is_refused(model_file, tmp_path):
    data = io.BytesIO(model_file("small").read_bytes())
    with zipfile.ZipFile(data) as archive, zipfile.ZipFile(tmp_path / "b.model", "w") as copy:
        for name in archive.namelist():
            if not name.endswith("data/3"):
                copy.writestr(name, archive.read(name))
    with pytest.raises(ConvertError, match="damaged"):
        read_module(tmp_path / "b.model")
