"""The uncertainty of one network, from the features that its last layer is linear in.

It is fitted once to a run with its data, and kept beside its network in `uncertainty.npz`:

    variance of E = a^2 f^T C^-1 f,    C = sum over training frames of g g^T + ridge,

where f are the features of a structure, added up over its atoms, and g those per atom, since errors
per atom are what is trained on. The ridge and a are those of the largest likelihood of the errors
of validation frames. Derivatives of f are in place of f for forces and stress, which have a factor
of their own: the RMS of the errors over that of the spread. A mean of ratios would be that of the
frames whose spread is next to nothing, such as perfect crystals.

References: Bigi, Chong, Ceriotti, Grasselli 2024, arXiv:2403.02251 (last-layer prediction
  rigidity); Chong et al. 2023, arXiv:2306.10966 (of atoms).
"""

import dataclasses
import io
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.stats

from eqfuse.convert.names import resolved
from eqfuse.data import DataError, Keys, Structure, of_atoms, read_structures
from eqfuse.data.lazy import chosen, evenly
from eqfuse.data.readers import frames_of
from eqfuse.data.structures import counted
from eqfuse.inference.commands import require_backend
from eqfuse.inference.evaluator import Evaluator
from eqfuse.inference.network import UNCERTAINTY, Network
from eqfuse.inference.predict import predict
from eqfuse.inference.spread import rows_of, spreads_of
from eqfuse.runs import command
from eqfuse.runs.errors import CheckpointError
from eqfuse.runs.files import digest_of, write_whole
from eqfuse.runs.schema import setting, word
from eqfuse.train.arguments import parse
from eqfuse.train.datasets import load_datasets

_RIDGES = 10.0 ** np.arange(-9, 1)
"""Of the mean eigenvalue of the covariance; features in float32 resolve no smaller ones."""
_FORCES_OF = 50  # validation frames
_FEWEST = 4
_LEAST = 0.01
"""Of the mean rigidity: far atoms have none, and ratios to it would decide all spreads."""


class Agreement(NamedTuple):
    """Errors and spread over the validation frames; NaN where no label is known."""

    error: float  # RMS, eV/atom of energies, eV/Å over the atoms of forces
    spread: float
    rank: float  # their rank correlation

    @classmethod
    def of(cls, errors: np.ndarray, spread: np.ndarray) -> "Agreement":
        """Return that of errors and the spread of each."""
        if len(errors) < 2:
            return cls(math.nan, math.nan, math.nan)
        rank = scipy.stats.spearmanr(np.abs(errors), spread).statistic
        return cls(*(float(np.sqrt(np.mean(x**2))) for x in (errors, spread)), float(rank))


class Fitted(NamedTuple):
    """What a fit was made of, and how it fits."""

    file: Path
    train: int  # frames
    validation: int
    features: int
    ridge: float  # of the mean eigenvalue
    energy: Agreement
    forces: Agreement
    atom: float  # eV, the largest spread of an atom's energy in the validation frames

    @property
    def max_spread(self) -> float:
        """Return a limit for dynamics, eV: twice the largest spread of the validation frames."""
        return float(f"{2 * self.atom:.2g}")


def fit(run, train=None, validation=None) -> Fitted:
    """Fit the uncertainty of the network of a run, and write it into its folder.

        eqfuse.inference.uncertainty.fit("runs/first")

    Args:
      run: the folder of a run.
      train: frames that it was trained on, with energies: a file, whose labels have the names of
        those of the run, `ase.Atoms` or `eqfuse.data.Structure`, or several in any form, see
        `eqfuse.predict`; None for those of the run.
      validation: frames that it was not trained on; None for those of the run.
    Raises:
      CheckpointError, ConfigError: no readable run, or one without data of its own.
      DataError: data that cannot be read, or fewer than four frames with an energy in one of them.
    """
    folder = Path(resolved(run)).expanduser()
    if not folder.is_dir():
        raise CheckpointError(f"{run} is not the folder of a run, which the uncertainty is kept in")
    network = Network(folder)
    dispersion, network.dispersion, network.uncertainty = network.dispersion, None, None
    needs_own = train is None or validation is None
    if needs_own and "converted" in network.metadata:
        raise CheckpointError(f"{run} was converted, and has no data: give train= and val=")
    own = _data_of(folder) if needs_own else (None, None)
    given = network.metadata["config"]["data"]
    keys = Keys(*(given.get(f"{n}_key", usual) for n, usual in Keys()._asdict().items()))
    # the network's own frames are less the dispersion already
    train = _labelled("training", own[0], train, keys, dispersion)
    validation = _labelled("validation", own[1], validation, keys, dispersion)

    rows = _totals(network, train) / np.array([[s.num_atoms] for s in train])
    values, vectors = np.linalg.eigh(rows.T @ rows)
    predicted = predict(network, validation)
    errors = np.array([p.energy - s.energy for p, s in zip(predicted, validation, strict=True)])
    squares = (_totals(network, validation) @ vectors) ** 2
    fits = []
    for ridge in _RIDGES:
        inverse = 1 / (np.maximum(values, 0) + ridge * values.mean())
        rigidity = squares @ inverse
        rigidity = np.maximum(rigidity, _LEAST * rigidity.mean())
        scale = np.mean(errors**2 / rigidity)  # of the largest likelihood
        fits.append((np.log(scale * rigidity).mean(), float(ridge), scale * inverse))
    _, ridge, variances = min(fits, key=lambda one: one[0])
    root, spread = vectors * np.sqrt(variances), np.sqrt(squares @ variances)

    network.uncertainty = {"root": root, "forces": 1.0}
    evaluator, pairs, atom = Evaluator(network), [np.zeros((2, 0))], 0.0
    for k in evenly(range(len(validation)), _FORCES_OF):
        frame = [validation[k]]
        [of_frame] = spreads_of(network, evaluator.list(frame), frame)
        atom = max(atom, float(of_frame.energies.max()))
        if (known := validation[k].forces) is not None:
            error = np.linalg.norm(predicted[k].forces - known, axis=1)
            pairs.append(np.stack([error, of_frame.forces])[:, ~np.isnan(error)])
    of_forces = np.concatenate(pairs, axis=1)
    factor, (errors_of_forces, spread_of_forces) = 1.0, np.linalg.norm(of_forces, axis=1)
    if spread_of_forces > 0:
        factor = float(errors_of_forces / spread_of_forces)
        of_forces[1] *= factor

    content = io.BytesIO()
    sizes = np.array([s.num_atoms for s in validation])
    agreement = Agreement.of(errors / sizes, spread / sizes), Agreement.of(*of_forces)
    counts = len(train), len(validation), len(root)
    fitted = Fitted(folder / UNCERTAINTY, *counts, ridge, *agreement, atom)
    arrays = {"root": root, "forces": np.array(factor), "limit": np.array(fitted.max_spread)}
    to = network.metadata["arrays_sha256"]
    np.savez(content, **arrays, network=to, sha256=digest_of(arrays))
    write_whole(fitted.file, content.getvalue())
    return fitted


def _data_of(folder: Path) -> tuple[list[Structure], list[Structure]]:
    """Return the training and the validation frames of a run."""
    config = parse([f"resume={folder}"])
    if config.heads:
        raise CheckpointError(f"{folder} has several heads; give train= and val= frames of one")
    dataset, _ = load_datasets(config)
    structures, validation = config.data.read(), config.data.read("val_path")
    validation = structures if validation is None else validation
    return [*chosen(structures, dataset.train_indices)], [*chosen(validation, dataset.val_indices)]


def _labelled(name: str, own, frames, keys: Keys, dispersion) -> list[Structure]:
    """Return the frames with an energy: a run's own, or others, less a dispersion, or of a file."""
    if frames is not None:
        frames = frames_of(frames, partial(read_structures, keys=keys, require_labels=False))
        frames = [s if isinstance(s, Structure) else of_atoms(s, keys) for s in frames]
    if frames is not None and dispersion is not None:
        frames = map(dispersion.without, frames)
    frames = own if frames is None else frames
    frames = [s for s in frames if s.energy is not None and not s.is_isolated_atom]
    if len(frames) < _FEWEST:
        raise DataError(
            f"the uncertainty needs at least {_FEWEST} {name} frames with an energy, and there are "
            f"{len(frames)}; give others"
        )
    return frames


def _totals(network: Network, structures: Sequence[Structure]) -> np.ndarray:
    """Return the features of structures, [n_structures, n_features], added up over their atoms."""
    evaluator = Evaluator(network)
    return np.stack([evaluator.apply(_total, evaluator.list([one])) for one in structures])


def _total(module, params, near, geometry):
    rows = rows_of(module, params, near, geometry, near.vectors)
    return rows.astype(jnp.float64).sum(axis=0)


@dataclasses.dataclass
class Uncertainty:
    """Fit the uncertainty of one network to its features on its training frames."""

    run: str = word("folder of the run, into which uncertainty.npz is written")
    train: Path | None = setting(None, "frames it was trained on; null: those of the run")
    val: Path | None = setting(None, "frames it was not trained on; null: those of the run")


@command.of(Uncertainty)
def main(options: Uncertainty):
    require_backend()
    fitted = fit(options.run, options.train, options.val)
    frames = counted(fitted.train, "training frame")
    print(f"{fitted.features} features, {frames}, ridge {fitted.ridge:g} of the mean eigenvalue")
    print(f"on {counted(fitted.validation, 'validation frame')}, RMS:")
    for name, unit, of in (
        ("energy", "meV/atom", fitted.energy),
        ("forces (norm of x, y, z)", "meV/Å", fitted.forces),
    ):
        print(
            f"  {name}: errors {1e3 * of.error:.3g} {unit}, spread {1e3 * of.spread:.3g} {unit}, "
            f"rank correlation {of.rank:.2f}"
        )
    print(
        f"  energy of an atom: spread of at most {fitted.atom:.2g} eV; dynamics that should stop "
        f"beyond what was validated: max_spread={fitted.max_spread:g}"
    )
    print(f"written to {fitted.file}: `eqfuse predict` writes the spread from now on")
