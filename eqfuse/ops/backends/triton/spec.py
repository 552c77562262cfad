"""A kernel as plain data: its source text and the types of what it is called with."""

from __future__ import annotations

import dataclasses
import hashlib

# numpy names of the array types that kernels read and write, and what triton calls them
TRITON_TYPES = {
    "bfloat16": "*bf16",
    "float16": "*fp16",
    "float32": "*fp32",
    "float64": "*fp64",
    "int32": "*i32",
}


def pointer_type(dtype) -> str:
    """Return Triton's name of a pointer to `dtype`, such as "*fp32" for float32."""
    name = getattr(dtype, "name", None) or str(dtype)
    if name not in TRITON_TYPES:
        raise ValueError(f"kernels take arrays of {', '.join(TRITON_TYPES)}, not of {name}")
    return TRITON_TYPES[name]


@dataclasses.dataclass(frozen=True)
class KernelSpec:
    """One @triton.jit function, called as name(*inputs, *scalars, *outputs), without constexprs."""

    name: str  # of the function, unique for its source (`build` makes one)
    source: str  # of a Python module that imports triton and defines the function
    input_types: tuple[str, ...]  # pointers in the order of the parameters, such as "*fp32"
    output_types: tuple[str, ...]
    scalars: tuple[str, ...] = ()  # names of the int32 parameters between inputs and outputs
    num_warps: int = 1  # of a program
    coalesce: bool = False  # triton may give a thread neighbouring elements, loaded at once

    @classmethod
    def build(
        cls, stem: str, source: str, input_types, output_types, scalars=(), num_warps: int = 1
    ) -> KernelSpec:
        """Return a spec named `stem` and a hash; in `source` the function is called KERNEL."""
        if "def KERNEL(" not in source:
            raise ValueError(f"the source of kernel {stem!r} defines no function KERNEL")
        types = (tuple(input_types), tuple(output_types), tuple(scalars), num_warps)
        digest = hashlib.sha256(repr((source, types)).encode()).hexdigest()[:16]
        name = f"{stem}_{digest}"
        return cls(name, source.replace("def KERNEL(", f"def {name}("), *types)

    @property
    def output_dtypes(self) -> tuple[str, ...]:
        """Return the NumPy names of the types of the outputs."""
        names = {pointer: name for name, pointer in TRITON_TYPES.items()}
        return tuple(names[pointer] for pointer in self.output_types)

    @property
    def parameter_types(self) -> tuple[str, ...]:
        """Return the Triton types of all parameters, in order."""
        return (*self.input_types, *("i32" for _ in self.scalars), *self.output_types)

    def check_call(self, inputs, scalars) -> None:
        """Refuse arrays (anything with dtype) and scalars that the kernel was not made for."""
        types = tuple(pointer_type(a.dtype) for a in inputs)
        if types != self.input_types:
            raise ValueError(f"kernel {self.name} wants inputs {self.input_types}, got {types}")
        if len(scalars) != len(self.scalars):
            raise ValueError(
                f"kernel {self.name} wants scalars {self.scalars}, got {tuple(scalars)}"
            )
        for name, value in zip(self.scalars, scalars, strict=True):
            if not -(2**31) <= value < 2**31:
                raise ValueError(f"kernel {self.name}: scalar {name} = {value} is not an int32")
