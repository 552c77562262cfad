"""The optimizer, and which parameters it changes."""

from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp
import optax

from eqfuse.train.flat import Flat
from eqfuse.train.muon import muon, place
from eqfuse.train.schedule import MoleculeTraining
from eqfuse.train.settings.schema import ConfigError


def make_optimizer(settings: MoleculeTraining, flat: Flat, decays) -> optax.GradientTransformation:
    """Return gradient to update, for a learning rate of one: clipping, then the optimizer.

    `decays` is 1 where weight decay acts on the parameters, which lie as `flat` says, else 0.

    References: Kingma and Ba 2015; Reddi et al. 2018 (AMSGrad); Loshchilov and Hutter 2019 (AdamW);
      for Muon see `eqfuse.train.muon`.
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


def _amsgrad(b2: float = 0.999) -> optax.GradientTransformation:
    """Return AMSGrad as in PyTorch, with which the published potentials were trained.

    The largest second moment is that of moments that are not yet corrected for their bias, and is
    corrected when it is used. By optax's default they are corrected before: then the gradients of
    the first steps, which are large and of a random network, keep all steps small (optax's issue
    1389).
    """
    return optax.chain(
        optax.scale_by_amsgrad(b2=b2, bias_correction_nu=False),
        optax.scale_by_schedule(lambda step: jnp.sqrt(1 - b2 ** (step + 1.0))),
    )


def _weight_decay(rate: float, decays) -> optax.GradientTransformation:
    """Add `rate` times the parameters to the updates, where they decay (Loshchilov and Hutter)."""
    return optax.stateless(
        lambda updates, params: jax.tree.map(
            lambda u, p, d: u + rate * d * p, updates, params, decays
        )
    )


def decays_of(params):
    """Return 1 for weights; 0 for the energy scale and shift of the species, which are physical."""

    def decays(path, leaf):
        physical = {"scale", "shift"} & {getattr(key, "key", None) for key in path}
        return jnp.full_like(leaf, 0.0 if physical else 1.0)

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
        return jnp.full_like(leaf, 0.0 if matches else 1.0)

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
    flat = Flat.of(params, place)
    optimizer = make_optimizer(settings, flat, flat.flatten(decays_of(params)))
    if settings.freeze is None:
        return flat, optimizer
    trained = flat.flatten(trained_of(params, settings.freeze))
    # before, so that frozen ones are not clipped for; after, for weight decay and momentum
    only = optax.stateless(lambda updates, _: updates * trained)
    return flat, optax.chain(only, optimizer, only)
