"""The optimizer, and which parameters it changes."""

import math
from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from eqfuse.runs.errors import ConfigError
from eqfuse.train.flat import Flat
from eqfuse.train.schedule import MoleculeTraining

RMS = 0.5
"""Root mean square of the elements of an update of a matrix by Muon, for a learning rate of one.

A common choice is 0.2, about what Adam's updates have. Weights of this package, like those of
e3nn-jax, have a standard deviation of one (their layers divide by sqrt(fan-in) instead), and were
trained better with 0.5 to 1.
"""


def make_optimizer(settings: MoleculeTraining, flat: Flat, decays) -> optax.GradientTransformation:
    """Return gradient to update, for a learning rate of one: clipping, then the optimizer.

    `decays` is 1 where weight decay acts on the parameters, which lie as `flat` says, else 0.

    References: Kingma and Ba 2015; Reddi et al. 2018 (AMSGrad); Loshchilov and Hutter 2019 (AdamW);
      for Muon see `muon`.
    """
    clip = settings.clip_norm
    parts = [] if clip is None else [optax.clip_by_global_norm(clip)]
    rate = settings.weight_decay
    if rate is None:
        rate = 0.01 if settings.optimizer == "adamw" else 0.0
    if settings.optimizer == "muon":
        decay = [_weight_decay(-rate, decays)] if rate else []  # its updates have the other sign
        return optax.chain(*parts, muon(flat), *decay)
    parts.append(_amsgrad() if settings.optimizer == "amsgrad" else optax.scale_by_adam())
    if settings.optimizer == "adamw":
        parts.append(_weight_decay(rate, decays))
    return optax.chain(*parts, optax.scale(-1.0))


def muon(flat: Flat) -> optax.GradientTransformation:
    """Return Muon for the matrices, Adam with Nesterov's momentum for other parameters.

    It is optax's, for a learning rate of one, on matrices of equal shapes together and on one
    vector of all others, so that a GPU launches few kernels. Embeddings, weights of the symmetric
    contraction, biases, readouts to one channel and scale and shift of the energies are no
    matrices, see `is_matrix`.

    References: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks";
      Liu et al. 2025, arXiv:2502.16982 (the scale of an update); Koker and Smidt 2025,
      arXiv:2508.16067 (an equivariant potential trained with it).
    """
    groups = {}  # numbers of leaves, by the shape of their matrices; () for all others
    for number, (name, shape) in enumerate(zip(flat.names, flat.shapes, strict=True)):
        group = shape[-2:] if is_matrix(name, shape) else ()
        groups.setdefault(group, []).append(number)
    names = {group: "x".join(map(str, group)) or "others" for group in groups}
    of_matrix = contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    dimensions = {name: of_matrix if group else None for group, name in names.items()}
    inner = contrib.muon(1.0, consistent_rms=RMS, muon_weight_dimension_numbers=dimensions)

    def split(array) -> dict:
        leaves = jax.tree.leaves(flat.unflatten(array))
        return {
            names[group]: jnp.concatenate([leaves[n].reshape(-1, *group) for n in numbers])
            for group, numbers in groups.items()
        }

    def join(parts: dict):
        leaves = [None] * len(flat.shapes)
        for group, numbers in groups.items():
            sizes = [math.prod(flat.shapes[n]) // math.prod(group) for n in numbers]
            pieces = jax.lax.split(parts[names[group]], sizes)
            for n, piece in zip(numbers, pieces, strict=True):
                leaves[n] = piece.reshape(flat.shapes[n])
        return flat.flatten(jax.tree.unflatten(flat.tree, leaves))

    def update(gradient, state, params=None):
        del params  # for weight decay, of which there is none
        parts = split(gradient)
        updates, state = inner.update(parts, state, parts)
        return join(updates), state

    return optax.GradientTransformation(lambda params: inner.init(split(params)), update)


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Test whether the last two axes of a parameter are a matrix from channels to channels.

    They are one `w[i,j]` of a Linear, of each species if it has weights of its own, or the kernel
    of a dense layer.
    """
    linear = name == "kernel" or name.startswith("w[")
    return linear and len(shape) >= 2 and min(shape[-2:]) > 1


def _amsgrad() -> optax.GradientTransformation:
    """Return AMSGrad as in PyTorch, with which the published potentials were trained.

    The largest second moment is that of moments that are not yet corrected for their bias, and is
    corrected when it is used. By optax's default they are corrected before: then the gradients of
    the first steps, which are large and of a random network, keep all steps small (optax's issue
    1389).
    """
    b2 = 0.999
    return optax.chain(
        optax.scale_by_amsgrad(b2=b2, bias_correction_nu=False),
        optax.scale_by_schedule(lambda step: jnp.sqrt(1 - b2 ** (step + 1.0))),
    )


def _weight_decay(rate: float, decays) -> optax.GradientTransformation:
    """Add `rate` times the parameters to the updates, where they decay (Loshchilov and Hutter)."""

    def decayed(updates, params):
        return jax.tree.map(lambda u, p, d: u + rate * d * p, updates, params, decays)

    return optax.stateless(decayed)


def decays_of(params):
    """Return 1 for weights; 0 for the energy scale and shift of the species, which are physical."""

    def decays(path, leaf):
        physical = {"scale", "shift"} & {getattr(key, "key", None) for key in path}
        return np.full(leaf.shape, 0.0 if physical else 1.0, leaf.dtype)

    return jax.tree_util.tree_map_with_path(decays, params)


def trained_of(params, freeze: str | None):
    """Return 1 for parameters that are trained, and 0 for those that are frozen.

    `freeze` has names of parameters or of the modules above them, as in
    `params["params"]["model"]`, with a slash between; `*` stands for anything; several with commas.
    """
    patterns = [] if freeze is None else [text.strip() for text in freeze.split(",")]
    used = set()

    def trained(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        name = name.removeprefix("params/").removeprefix("model/")
        matches = {p for p in patterns if any(fnmatchcase(name, form) for form in (p, f"{p}/*"))}
        used.update(matches)
        return np.full(leaf.shape, 0.0 if matches else 1.0, leaf.dtype)

    mask = jax.tree_util.tree_map_with_path(trained, params)
    for pattern in patterns:
        if pattern not in used:
            tree = params.get("params", params)
            known = sorted({*tree.get("model", tree), *tree} - {"model"})
            raise ConfigError(f"training.freeze={pattern} matches no parameter; there are {known}")
    if patterns and not any(leaf.any() for leaf in jax.tree.leaves(mask)):
        raise ConfigError(f"training.freeze={freeze} leaves no parameter to train")
    return mask


def flat_training(settings: MoleculeTraining, params) -> tuple[Flat, optax.GradientTransformation]:
    """Return the layout of the parameters in one array, and the optimizer of that array."""
    decays, flat = decays_of(params), Flat.of(params)
    optimizer = make_optimizer(settings, flat, flat.flatten(decays))
    if settings.freeze is None:
        return flat, optimizer
    trained = flat.flatten(trained_of(params, settings.freeze))
    # before, so that frozen ones are not clipped for; after, for weight decay and momentum
    only = optax.stateless(lambda updates, _: updates * trained)
    return flat, optax.chain(only, optimizer, only)
