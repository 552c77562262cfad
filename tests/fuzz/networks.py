"""Parts of random e3nn-jax networks, each of them written in all the ways that users have."""

import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np


class Parameters:
    """Arrays by name. Without values, the shapes that are asked for are noted, and are zeros."""

    def __init__(self, values=None):
        self.values, self.shapes = values, {}

    def __call__(self, name: str, *shape: int):
        self.shapes[name] = shape
        return jnp.zeros(shape) if self.values is None else self.values[name]

    def tree(self, name: str, shapes):
        leaves, structure = jax.tree.flatten(shapes)
        leaves = [self(f"{name} {n}", *leaf.shape) for n, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, leaves)


def linear(kind: str, x, out, parameters: Parameters, name: str, force: bool = False):
    """Return a Linear of a framework or e3nn's functional one, to those irreps that x has."""
    out = e3nn.Irreps(out)
    out = out if force else out.filter(keep=x.irreps) or x.irreps
    key = jax.random.key(0)
    if kind == "none":
        return x
    if kind == "functional":
        module = e3nn.FunctionalLinear(x.irreps, out)
        shapes = [jax.ShapeDtypeStruct(i.path_shape, x.dtype) for i in module.instructions]
        return e3nn.utils.vmap(functools.partial(module, parameters.tree(name, shapes)))(x)
    if kind == "equinox":
        import equinox

        irreps = {"irreps_out": out, "irreps_in": x.irreps.regroup()}
        module = e3nn.equinox.Linear(**irreps, key=key, input_dtype=x.dtype)
        arrays, others = equinox.partition(module, equinox.is_array)
        return equinox.combine(parameters.tree(name, arrays), others)(x)
    if kind == "haiku":
        import haiku

        module = haiku.without_apply_rng(
            haiku.transform(lambda x: e3nn.haiku.Linear(out, force_irreps_out=force)(x))
        )
    else:
        module = e3nn.flax.Linear(out, force_irreps_out=force)
    shapes = jax.eval_shape(module.init, key, x)
    return module.apply(parameters.tree(name, shapes), x)


def in_chunks(kind: str, x, parameters: Parameters, name: str):
    """Return features as an activation or `concatenate` leaves them, with chunks of their own."""
    if kind == "gate":
        if "0e" not in x.irreps:
            x = e3nn.concatenate([e3nn.norm(x, squared=True), x])
        others = x.irreps.filter(drop=["0e", "0o"])
        gates = e3nn.Irreps(f"3x0e+{others.num_irreps}x0e")
        return e3nn.gate(linear("flax", x, gates + others, parameters, name))
    acts = [jnp.tanh if ir.l == 0 else None for _, ir in x.irreps]
    if kind == "scalars":
        return e3nn.scalar_activation(x, acts)
    if kind == "norms":
        return e3nn.norm_activation(x, [jnp.tanh] * len(x.irreps))
    if kind == "concatenate":
        return e3nn.concatenate([2 * x.slice_by_mul[:1], x.slice_by_mul[1:]])
    return x * jnp.cos(x.array[:, :1]) if kind == "scale" else x


def gathered(kind: str, x, index):
    """Return rows of an IrrepsArray by an index in one of the ways of JAX."""
    a = x.array
    ways = {
        "[]": lambda: x[index],
        "array": lambda: a[index],
        "slice": lambda: x[index, :],
        "take": lambda: jnp.take(a, index, axis=0),
        "fill": lambda: jnp.take(a, index, axis=0, mode="fill", fill_value=0.0),
        "get": lambda: a.at[index].get(),
        "get-fill": lambda: a.at[index].get(mode="fill", fill_value=0.0),
        "get-clip": lambda: a.at[index].get(mode="clip"),
        "promise": lambda: a.at[index].get(mode="promise_in_bounds"),
        "onehot": lambda: jax.nn.one_hot(index, x.shape[0]) @ a,
    }
    rows = ways[kind]() if kind in ways else jnp.take(a, index, axis=0, mode=kind)
    return rows if isinstance(rows, e3nn.IrrepsArray) else e3nn.IrrepsArray(x.irreps, rows)


def summed(kind: str, m, r, nodes: int):
    """Return sums of the rows of an IrrepsArray to nodes, in one of the ways of JAX."""
    zeros, hot = jnp.zeros((nodes, m.irreps.dim)), functools.partial(jax.nn.one_hot, r, nodes)
    near = (r == jnp.arange(nodes)[:, None])[..., None]
    ways = {
        "scatter_sum": lambda: e3nn.scatter_sum(m, dst=r, output_size=nodes),
        "nel": lambda: e3nn.scatter_sum(m, nel=jnp.bincount(r, length=nodes)),
        "mean": lambda: e3nn.scatter_mean(m, dst=r, output_size=nodes),
        "mapped": lambda: e3nn.scatter_sum(m, dst=r, map_back=True)[:nodes],
        "index_add": lambda: e3nn.index_add(r, m, out_dim=nodes),
        "segment_sum": lambda: jax.ops.segment_sum(m.array, r, nodes),
        "at.add": lambda: e3nn.IrrepsArray(m.irreps, zeros).at[r].add(m),
        "drop": lambda: zeros.at[r].add(m.array, mode="drop"),
        "onehot": lambda: hot().T @ m.array,
        "dense": lambda: jnp.sum(jnp.where(near, m.array, 0.0), axis=1),
    }
    n = ways[kind]()
    return n if isinstance(n, e3nn.IrrepsArray) else e3nn.IrrepsArray(m.irreps, n)


def product(kind: str, m, y, keep):
    """Return a product of rows of features and of spherical harmonics."""
    if kind == "elementwise":
        scalars = jnp.cos(y.array[:, :1]) * jnp.arange(1.0, m.irreps.num_irreps + 1)
        return e3nn.elementwise_tensor_product(
            m, e3nn.IrrepsArray(f"{scalars.shape[1]}x0e", scalars)
        )
    if kind == "square":
        return e3nn.elementwise_tensor_product(m, m)
    if kind == "none":
        return m
    if not e3nn.tensor_product(m.irreps, y.irreps, filter_ir_out=keep).dim:
        keep = None
    channels = int(np.gcd.reduce([mul for mul, _ in m.irreps]))
    if kind == "axis" and channels > 1:
        m, y = m.mul_to_axis(channels), y[:, None]
        return e3nn.tensor_product(m, y, filter_ir_out=keep).axis_to_mul()
    both = (y, m) if kind == "swapped" else (m, y)
    return e3nn.tensor_product(*both, filter_ir_out=keep)


def weighted(kind: str, m, lengths, y, parameters: Parameters, name: str):
    """Return messages times a weight for each edge, irrep, or both."""
    count = m.irreps.num_irreps
    if kind == "mlp":
        hidden = jnp.tanh(lengths * parameters(f"{name} first", 1, 4))
        return m * (hidden @ parameters(f"{name} last", 4, count))
    if kind == "where":
        return e3nn.IrrepsArray(m.irreps, jnp.where(lengths < 2.0, m.array, 0.0))
    weights = {"edge": lengths, "exp": jnp.exp(-y.array[:, :1])}
    weights["shared"] = parameters(name, count) if kind == "shared" else None
    return m if kind == "none" else m * weights[kind]


def layer(of: dict, x, lengths, y, ends, mask, parameters: Parameters, name: str):
    """Return features of nodes after a sum of messages."""
    s, r = ends
    x = in_chunks(of["chunks"], x, parameters, f"{name} chunks")
    h = linear(of["up"], x, of["out"], parameters, f"{name} up")
    m = gathered(of["gather"], h, s)
    if of["ends"] != "sender":
        other = gathered(of["gather"], h, r)
        m = m - other if of["ends"] == "difference" else m + 0.5 * other
    keep = None if of["filter"] == "all" else [ir for _, ir in of["out"] + h.irreps]
    t = product(of["product"], m, y, keep)
    if of["beside"] != "none":
        t = e3nn.concatenate([m, t])
        t = t.regroup() if of["beside"] == "regroup" else t
    t = weighted(of["weights"], t, lengths, y, parameters, f"{name} weights")
    if mask is not None:
        t = t * mask[:, None]
    if of["message"] == "Linear":
        t = linear("flax", t, of["out"], parameters, f"{name} message")
    t = in_chunks("scalars", t, parameters, "") if of["message"] == "scalars" else t
    n = summed(of["sum"], t, r, x.shape[0])
    n = n / 1.7 if of["scale"] == "average" else n
    n = n * jnp.sin(x.array[:, :1]) if of["scale"] == "nodes" else n
    n = linear(of["down"], n, of["out"], parameters, f"{name} down")
    if of["skip"] == "add":
        n = n + linear("flax", x, n.irreps, parameters, f"{name} skip", force=True)
    return e3nn.concatenate([n, x]) if of["skip"] == "concatenate" else n


def readout(kind: str, n, parameters: Parameters):
    """Return a tuple of what a network is asked for, of its nodes."""
    s = n.filter(keep="0e") if "0e" in n.irreps else n
    groups = jnp.arange(n.shape[0]) % 2
    hidden = parameters("hidden", s.irreps.dim, 4) if kind == "mlp" else None
    ways = {
        "nodes": lambda: n.array,
        "sum": lambda: s.array.sum(),
        "mean": lambda: jnp.mean(s.array),
        "rows": lambda: n.array.sum(0),
        "axis": lambda: jnp.sum(s.array, axis=1),
        "squares": lambda: jnp.sum(n.array**2),
        "hand": lambda: jnp.sum(s.array @ parameters("hand", s.irreps.dim)),
        "vdot": lambda: jnp.vdot(n.array, jnp.ones(n.shape)),
        "dot": lambda: e3nn.dot(n, n).array.sum(),
        "norm": lambda: e3nn.norm(n, squared=True).array.sum(),
        "max": lambda: jnp.max(s.array),
        "segments": lambda: e3nn.scatter_sum(s, dst=groups, output_size=2).array,
        "nel": lambda: e3nn.scatter_sum(s, nel=jnp.array([2, n.shape[0] - 2])).array,
        "mlp": lambda: jnp.sum(jnp.tanh(s.array @ hidden), axis=-1).sum(),
        "Linear": lambda: linear("flax", n, "0e+1o", parameters, "readout").array.sum(axis=0),
        "two": lambda: (jnp.sum(s.array), n.array),
        "product": lambda: e3nn.mean(e3nn.tensor_product(n, n, filter_ir_out="0e"), axis=0).array,
    }
    out = ways[kind]()
    return out if isinstance(out, tuple) else (out,)
