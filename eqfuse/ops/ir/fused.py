"""Product, Linear and gate as one op, as data.

z = Linear(product(x, y, w)) + skip,    out = gate(z)
"""

import dataclasses

from eqfuse.ops.ir.form import INDEX_ARRAYS, Form, Index, Operand, Path, SegmentRef
from eqfuse.ops.ir.gate import Gate
from eqfuse.ops.ir.linear import Linear


@dataclasses.dataclass(frozen=True)
class Fused:
    """What is fused. Operands: the form's inputs, the Linear's parameters, the skip if any.

    The pre-activation z may be several arrays (`linear.cut`) if neither gate nor skip follows.
    """

    form: Form  # the product; its one output is what the Linear reads
    linear: Linear
    gate: Gate | None
    skip: bool  # whether a row [rows, linear.size_out] is added before the gate

    @classmethod
    def build(cls, form: Form, linear: Linear, gate: Gate | None, skip: bool) -> "Fused":
        """Return the op, without those paths of the product that the Linear does not read."""
        [out] = form.outputs
        read = [b for n, b in enumerate(linear.blocks_in) if linear.reads(n)]
        paths = tuple(
            p for p in form.paths if any(b.holds(out.segments[p.output.segment]) for b in read)
        )
        return cls(dataclasses.replace(form, paths=paths), linear, gate, skip)

    @property
    def summed(self) -> bool:
        """Return whether the product is summed over the edges of a node."""
        return self.form.outputs[0].index is Index.RECEIVER

    @property
    def epilogue(self) -> "Fused":
        """Return the epilogue: the op of rows that are the product."""
        [out] = self.form.outputs
        source = Operand("m", out.size, out.segments, True)
        paths = [
            Path((ref,), ref, tuple(((k, k), 1.0) for k in range(segment.dim)))
            for ref, segment in ((SegmentRef(0, n), s) for n, s in enumerate(out.segments))
        ]
        out = dataclasses.replace(out, index=Index.ROW)
        form = Form((source,), (out,), tuple(paths))
        return dataclasses.replace(self, form=form)

    @property
    def is_epilogue(self) -> bool:
        """Return whether the product is a row that is given, see `epilogue`."""
        return len(self.form.inputs) == 1

    @property
    def num_sets(self) -> int:
        return self.linear.linear_form.num_sets

    @property
    def num_floats(self) -> int:
        return len(self.form.inputs) + len(self.linear.parameters) + self.skip

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the rows of the outputs: out, and the arrays of z."""
        gated = () if self.gate is None else (self.gate.irreps_out.dim,)
        return (*gated, *(rows.size for rows in self.linear.linear_form.outputs))

    @property
    def arrays(self) -> list[str]:
        """Return names of the arrays that the pre-activation consists of."""
        count = len(self.linear.linear_form.outputs)
        return ["z"] if count == 1 else [f"z{n}" for n in range(count)]

    @property
    def outputs(self) -> list[str]:
        return [*([] if self.gate is None else ["out"]), *self.arrays]

    def cotangents(self, given) -> list[str]:
        """Return names of the cotangents of the outputs that are given, in their order."""
        return [
            f"ct_{name}" for name, is_given in zip(self.outputs, given, strict=True) if is_given
        ]

    def operands(self, floats):
        """Return (inputs of the form, parameters of the Linear, skip or None)."""
        n = len(self.form.inputs)
        m = n + len(self.linear.parameters)
        return list(floats[:n]), list(floats[n:m]), (floats[m] if self.skip else None)

    def named(self, floats, integers) -> dict:
        """Return the operands by the names that kernels use."""
        inputs, parameters, skip = self.operands(floats)
        index, arrays = self.split(integers)
        named = dict(zip([o.name for o in self.form.inputs], inputs, strict=True))
        named |= {f"p{n}": p for n, p in enumerate(parameters)}
        return named | {"skip": skip, "set_index": index} | arrays

    def split(self, integers):
        """Return (the index of the weights or None, the index arrays by name)."""
        index, *arrays = integers if self.num_sets else (None, *integers)
        return index, dict(zip(INDEX_ARRAYS, arrays, strict=False))


def backward_form(form: Form, wanted: tuple[bool, ...]) -> Form:
    """Return the form of the cotangents of the wanted inputs; its last input is dout."""
    linear = (False,) * len(form.inputs) + (True,) * sum(wanted)
    return form.jvp(wanted).transpose(linear, (True,))
