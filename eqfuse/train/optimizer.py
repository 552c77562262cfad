"""The optimiser, the learning rate and the average of the parameters."""

import math
from fnmatch import fnmatchcase

import flax
import jax
import jax.numpy as jnp
import optax

from eqfuse.train.flat import Flat
from eqfuse.train.muon import muon, place
from eqfuse.train.settings.config import ConfigError, MoleculeTraining


@flax.struct.dataclass
class TrainState:
    """What a training step changes.

    Attributes:
      params: trained parameters; in a run one array, see `Flat`.
      average: exponential moving average of the parameters, used for evaluation.
      optimizer: state of the optimiser.
      step: number of steps taken, int32.
    """

    params: jax.Array | dict
    average: jax.Array | dict
    optimizer: optax.OptState
    step: jax.Array


def make_optimizer(config: MoleculeTraining, flat: Flat, decays) -> optax.GradientTransformation:
    """Gradient to direction, for learning rate one: clipping, then what `optimizer` names.

    Args:
      config: which, and how.
      flat: how the parameters lie in the array that is optimized.
      decays: array like that one, of 1 where AdamW decays the parameters and 0 elsewhere.
    References: Kingma and Ba 2015; Reddi et al. 2018 (AMSGrad); Loshchilov and Hutter 2019 (AdamW);
      for Muon see `eqfuse.train.muon`.
    """
    clip = config.clip_norm
    parts = [] if clip is None else [optax.clip_by_global_norm(clip)]
    if config.optimizer == "muon":
        return optax.chain(*parts, muon(flat))
    parts.append(_amsgrad() if config.optimizer == "amsgrad" else optax.scale_by_adam())
    if config.optimizer == "adamw":
        parts.append(_weight_decay(config.weight_decay, decays))
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

    Args:
      params: variables of a potential.
      freeze: names of parameters or of the modules above them, as in `params["params"]["model"]`,
        with a slash between; `*` stands for anything; several with commas.
    Raises:
      ConfigError: a name that fits none, or no parameter left.
    """
    patterns = [] if freeze is None else [text.strip() for text in freeze.split(",")]
    used = set()

    def trained(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        name = name.removeprefix("params/").removeprefix("model/")
        fitting = {p for p in patterns if any(fnmatchcase(name, form) for form in (p, f"{p}/*"))}
        used.update(fitting)
        return jnp.full_like(leaf, 0.0 if fitting else 1.0)

    mask = jax.tree_util.tree_map_with_path(trained, params)
    for pattern in patterns:
        if pattern not in used:
            tree = params.get("params", params)
            known = sorted({*tree.get("model", tree), *tree} - {"model"})
            raise ConfigError(f"training.freeze={pattern} fits no parameter; there are {known}")
    if patterns and not any(leaf.any() for leaf in jax.tree.leaves(mask)):
        raise ConfigError(f"training.freeze={freeze} leaves no parameter to train")
    return mask


def flat_training(config: MoleculeTraining, params) -> tuple[Flat, optax.GradientTransformation]:
    """Return how the parameters lie in one array, and the optimizer of that array."""
    flat = Flat.of(params, place)
    optimizer = make_optimizer(config, flat, flat.flatten(decays_of(params)))
    if config.freeze is None:
        return flat, optimizer
    trained = flat.flatten(trained_of(params, config.freeze))
    # before, so that frozen ones are not clipped for; after, for weight decay and momentum
    only = optax.stateless(lambda updates, _: updates * trained)
    return flat, optax.chain(only, optimizer, only)


def init_state(params, optimizer: optax.GradientTransformation) -> TrainState:
    return TrainState(params, params, optimizer.init(params), jnp.zeros((), jnp.int32))


@jax.named_scope("optimizer")
def apply_gradient(
    state: TrainState,
    gradient,
    learning_rate,
    optimizer: optax.GradientTransformation,
    ema_decay: float,
) -> TrainState:
    """Return one step of the optimiser and of the average.

    The decay of the average rises to `ema_decay` as (1 + step) / (10 + step), so that the random
    initial parameters are soon forgotten.
    """
    direction, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
    params = jax.tree.map(
        lambda p, d: (p + learning_rate * d).astype(p.dtype), state.params, direction
    )
    step = state.step + 1
    decay = jnp.minimum(ema_decay, (1.0 + step) / (10.0 + step)) if ema_decay else 0.0
    average = jax.tree.map(  # what stays the same is its own average, to the last bit
        lambda a, p: (p + decay * (a - p)).astype(p.dtype), state.average, params
    )
    return TrainState(params, average, optimizer_state, step)


class LearningRate:
    """The learning rate of every step: a linear rise, then cosine, plateau or constant.

    Cosine falls from `lr` to `min_lr` as the run passes, by steps or by time, whichever is further.
    Plateau multiplies by `factor` after `patience` epochs without a better validation loss.
    """

    def __init__(self, config: MoleculeTraining):
        self._config = config
        self._scale = 1.0
        self._best = math.inf
        self._waited = 0

    def __call__(self, step: int, fraction: float) -> float:
        """Learning rate of step number `step` (from 0), `fraction` of the run being done."""
        config = self._config
        value = config.lr * self._scale
        if config.schedule == "cosine":
            wave = 0.5 * (1.0 + math.cos(math.pi * min(fraction, 1.0)))
            value = config.min_lr + (config.lr - config.min_lr) * wave
        return value * min(1.0, (step + 1) / max(config.warmup_steps, 1))

    def epoch_ended(self, validation_loss: float):
        """Tell the plateau how the epoch went."""
        if validation_loss < self._best:
            self._best, self._waited = validation_loss, 0
            return
        self._waited += 1
        if self._config.schedule == "plateau" and self._waited >= self._config.patience:
            self._scale, self._waited = self._scale * self._config.factor, 0

    def to_plain(self) -> dict:
        """Return what it remembers, as plain values."""
        return {"scale": self._scale, "best": self._best, "waited": self._waited}

    def restore(self, plain: dict):
        """Go on from what `to_plain` returned."""
        self._scale, self._best = plain["scale"], plain["best"]
        self._waited = plain["waited"]

    @property
    def exhausted(self) -> bool:
        """Return the plateau has brought the learning rate below `min_lr`."""
        plateau = self._config.schedule == "plateau"
        return plateau and self._config.lr * self._scale < self._config.min_lr
