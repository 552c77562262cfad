"""A gate as activations of some scalars and a form: how native kernels compute it.

With a = act(scalars of z), the gate is the form out[u, k] = a[u] * z[u, k], summed over nothing,
and so are its derivatives with those of the activations in the place of a.
"""

from __future__ import annotations

import dataclasses
import functools

from eqfuse.ops.ir.activated import Activated, ActivatedPart, operand, path_between
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.gates import IDENTITY, Gate, Part
from eqfuse.ops.ir.linears import Linear
from eqfuse.ops.ir.operands import Operand, SegmentRef


@dataclasses.dataclass(frozen=True)
class GateForms:
    """A gate as activations and forms.

    Attributes:
      activated: of the rows of z.
      value: (activations, z) -> out.
      tangent: (slopes, activations, z, tangent of z) -> tangent of out.
    """

    activated: Activated
    value: Form
    tangent: Form


@functools.lru_cache(maxsize=256)
def forms_of(gate: Gate, linear: Linear) -> GateForms:
    """Return the activations and forms of a gate that follows a Linear, of one array."""
    blocks = linear.blocks_out
    [rows] = linear.linear_form.outputs

    def place(part: Part) -> tuple[int, int, int]:
        block = blocks[part.block]
        return block.offset + part.first * block.dim, part.mul, block.dim

    parts, z_places, a_places, out_places = [], [], [], []
    values, tangents = [], []  # paths
    for tile in gate.tiles:
        offset, mul, dim = place(tile.part)
        z = len(z_places)
        z_places.append((offset, mul, dim))
        out = SegmentRef(0, len(out_places))
        out_places.append((tile.offset, mul, dim))
        if tile.gate is None and tile.act == IDENTITY:
            values.append(path_between((SegmentRef(1, z),), out, (dim,)))
            tangents.append(path_between((SegmentRef(3, z),), out, (dim,)))
            continue
        a = len(a_places)
        scalars = place(tile.gate or tile.part)
        a_places.append((sum(p.mul for p in parts), mul, 1))
        parts.append(ActivatedPart(scalars[0], mul, tile.act.name, tile.act.scale))
        if tile.gate is None:
            values.append(path_between((SegmentRef(0, a),), out, (1,)))
            tangents.append(path_between((SegmentRef(0, a), SegmentRef(3, z)), out, (1, 1)))
            continue
        gating = len(z_places)
        z_places.append(scalars)
        values.append(path_between((SegmentRef(0, a), SegmentRef(1, z)), out, (1, dim)))
        slopes = SegmentRef(0, a), SegmentRef(2, z), SegmentRef(3, gating)
        tangents.append(path_between(slopes, out, (1, dim, 1)))
        tangents.append(path_between((SegmentRef(1, a), SegmentRef(3, z)), out, (1, dim)))
    activated = Activated(rows, tuple(parts))

    def named(name: str) -> Operand:
        is_row = name in ("z", "t_z")
        return operand(name, rows.size if is_row else activated.size, (a_places, z_places)[is_row])

    outputs = (operand("out", gate.irreps_out.dim, out_places),)
    value = Form(tuple(map(named, "az")), outputs, tuple(values))
    inputs = tuple(map(named, ("d", "a", "z", "t_z")))
    return GateForms(activated, value, Form(inputs, outputs, tuple(tangents)))
