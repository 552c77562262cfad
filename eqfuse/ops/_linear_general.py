"""e3nn's Linear with chosen instructions, or with weights as an operand, as a `LinearForm`.

Weights e [..., d] are contracted with parameters p [d, mul_in, mul_out]: row z is mixed by the
matrix sum_d e[z, d] p[d]. No such matrix is made: e times x has d * mul_in channels, which p mixes
as one matrix [d * mul_in, mul_out] for all rows. A bias is a matrix of e. With weights of each
channel, a set of such matrices belongs to each channel, which is the index of its rows.
"""

import dataclasses
import functools
import math

import e3nn_jax as e3nn
import jax.numpy as jnp

from eqfuse.ops.ir.linear_form import Block, BlockRef, LinearForm, Rows, Term, Weights
from eqfuse.ops.ir.linears import Linear, Parameter, blocks, functional


@dataclasses.dataclass(frozen=True)
class General:
    """A Linear, and what its row and its matrices are made of.

    Attributes:
      linear: of the row that `row` makes; its parameters are the matrices that `matrices` makes.
      declared: all parameters of e3nn's, in order, also empty ones, without axes of weights.
      used: the numbers of those that the Linear has.
      irreps_in: of x.
      num_weights: d; None without weights.
    """

    linear: Linear
    declared: tuple[Parameter, ...]
    used: tuple[int, ...]
    irreps_in: e3nn.Irreps
    num_weights: int | None

    def row(self, x: e3nn.IrrepsArray, weights):
        """Return [..., size]: x, or the weights and then their products with the blocks of x."""
        if weights is None:
            return x.array
        shape = jnp.broadcast_shapes(x.shape[:-1], weights.shape[:-1])
        parts = [weights]
        for block, (mul, ir) in zip(blocks(self.irreps_in), self.irreps_in, strict=True):
            chunk = x.array[..., None, block.offset : block.offset + mul * ir.dim]
            parts.append((weights[..., None] * chunk).reshape(*shape, -1))
        parts[0] = jnp.broadcast_to(weights, (*shape, weights.shape[-1]))
        return jnp.concatenate(parts, axis=-1)

    def matrices(self, parameters) -> list:
        """Return the matrices, or those of each channel, [channels, ...], of these parameters."""
        if self.num_weights is None:
            return list(parameters)
        matrices = []
        for n, p in zip(self.used, parameters, strict=True):
            ndim = len(self.declared[n].shape)
            if p.ndim == ndim + 2:  # [d, channels, ...]
                p = jnp.moveaxis(p, 0, 1)
            lead = p.shape[: p.ndim - ndim - 1]
            matrices.append(p.reshape(*lead, -1, p.shape[-1]))
        return matrices


@functools.cache
def general(
    irreps_in: e3nn.Irreps,
    irreps_out: e3nn.Irreps,
    instructions: tuple[tuple[int, int], ...] | None,
    biases,
    path_normalization,
    gradient_normalization: float,
    num_weights: int | None,
    num_sets: int,
    input_precision: str,
) -> General:
    """Return what `e3nn.flax.Linear` applies to blocks as they are, with or without weights.

    Raises:
      ValueError: as `functional`.
    """
    ours = functional(
        irreps_in,
        irreps_out,
        biases,
        instructions,
        path_normalization=path_normalization,
        gradient_normalization=gradient_normalization,
    )
    d = 1 if num_weights is None else num_weights
    shift = 0 if num_weights is None else d  # the weights lie before their products
    places = {
        n: Block(shift + d * b.offset, d * b.mul, b.dim) for n, b in enumerate(blocks(irreps_in))
    }
    row = [(n, block) for n, block in places.items() if block.mul]
    if num_weights is not None:
        row.append((-1, Block(0, d, 1)))  # what a bias reads
    number = {n: k for k, (n, _) in enumerate(row)}
    outputs = [(n, block) for n, block in enumerate(blocks(irreps_out)) if block.mul]
    place_out = {n: k for k, (n, _) in enumerate(outputs)}
    share = 1.0 if num_weights is None else d ** (-0.5 * gradient_normalization)
    declared, used, terms = [], [], []
    for k, i in enumerate(ours.instructions):
        declared.append(_parameter(i, irreps_in, irreps_out))
        if 0 in i.path_shape:
            continue
        used.append(k)
        x = None if i.i_in < 0 and num_weights is None else BlockRef(0, number[i.i_in])
        terms.append((x, len(used), place_out[i.i_out], share * float(i.path_weight)))
    shapes = []
    for k in used:
        *lead, columns = declared[k].shape
        matrix = (d * math.prod(lead), columns)
        shapes.append(matrix if lead or num_weights is not None else (columns,))
    rows = Rows(shift + d * irreps_in.dim, tuple(block for _, block in row))
    mixed = Rows(irreps_out.dim, tuple(block for _, block in outputs))
    linear_form = LinearForm(
        (rows, *map(Weights, shapes)),
        (mixed,),
        tuple(Term(x, w, BlockRef(1 + len(used), z), scale) for x, w, z, scale in terms),
        num_sets,
        input_precision,
    )
    parameters = tuple(
        dataclasses.replace(declared[k], shape=s) for k, s in zip(used, shapes, strict=True)
    )
    linear = Linear(linear_form, parameters, irreps_out)
    return General(linear, tuple(declared), tuple(used), irreps_in, num_weights)


def _parameter(i, irreps_in: e3nn.Irreps, irreps_out: e3nn.Irreps) -> Parameter:
    """Return the parameter of an instruction of e3nn's Linear, by the name that e3nn gives it."""
    out = irreps_out[i.i_out]
    name = f"b[{i.i_out}] {out}"
    if i.i_in >= 0:
        name = f"w[{i.i_in},{i.i_out}] {irreps_in[i.i_in]},{out}"
    return Parameter(name, tuple(map(int, i.path_shape)), float(i.weight_std))
