"""What jaxlib is given of a compiled kernel: machine code, PTX, or the name of a file."""

from __future__ import annotations

import atexit
import functools
import hashlib
import shutil
import tempfile

import jaxlib

from eqfuse.ops.backends.triton.runtime.compile import CompiledKernel

# the first jaxlib whose kernels have the field `module_image` (in jaxlib/gpu/triton.proto)
_FIRST_WITH_IMAGES = (0, 11, 1)


def takes_cubins() -> bool:
    """Return whether jaxlib loads a cubin that it is given; it assembles PTX itself before."""
    return jaxlib.version.__version_info__ >= _FIRST_WITH_IMAGES


def gpu_kernel(library, compiled: CompiledKernel):
    """Return jaxlib's description of the kernel, and bytes that follow its serialised call.

    jaxlib finds a kernel that it has loaded by its name and PTX. A cubin is handed over beside it,
    and the PTX can then be any text that differs between kernels: a hash. For ROCm the text is the
    name of a file, which jaxlib reads and deletes; so each lowering has a file of its own, and the
    cache keeps its kernel.
    """
    capability, image = 0, b""
    if not compiled.target.startswith("sm_"):
        text = _file_for_one_launch(compiled)
    else:
        capability = int(compiled.target.removeprefix("sm_"))
        text = compiled.assembly
        if takes_cubins():
            text = hashlib.sha256(compiled.binary).hexdigest()[:32]
            image = _image(compiled)
    kernel = library.TritonKernel(
        compiled.entry, compiled.num_warps, 1, compiled.shared_bytes, text, "", capability
    )
    return kernel, image


def _image(compiled: CompiledKernel) -> bytes:
    """Return the field `module_image` of the kernel in a serialised TritonAnyKernelCall.

    jaxlib's Python interface cannot set it. Two messages in a row are merged by protobuf's rules,
    so this is the call with nothing but that field.
    """
    image = _field(1, compiled.binary) + _field(2, compiled.entry.encode())
    image += _varint(3 << 3) + _varint(compiled.shared_bytes)
    return _field(1, _field(1, _field(11, image)))  # kernel_call.kernel.module_image


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _file_for_one_launch(compiled: CompiledKernel) -> str:
    handle, name = tempfile.mkstemp(".hsaco", f"{compiled.entry}-", _folder())
    with open(handle, "wb") as file:
        file.write(compiled.binary)
    return name


@functools.cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="eqfuse-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
