"""What a run reports before it compiles anything."""

import math

import jax
from ase.data import chemical_symbols

from eqfuse import ops
from eqfuse.data import Batcher, Dataset
from eqfuse.data.structures import LABELS, UNWEIGHTED, counted
from eqfuse.train.device.parallel import Devices
from eqfuse.train.file_sources import described
from eqfuse.train.run.results import evaluated_samples, evaluation_batcher
from eqfuse.train.run.runs import RunFolder
from eqfuse.train.schedule import Limits, MoleculeTraining
from eqfuse.train.sources import AVERAGE, FIT, MoleculeData
from eqfuse.train.start import reference_batcher


def report(
    settings: MoleculeData,
    training: MoleculeTraining,
    start_from: str | None,
    backend: str | None,
    dataset: Dataset,
    batchers: list[Batcher],
    limits: Limits,
    folder: RunFolder,
    devices: Devices,
) -> str:
    """Return what is about to be trained, on one screen.

    Args:
      settings, training: of the data, and of the training.
      start_from, backend: the settings of these names.
      dataset, batchers: of the training and the validation samples.
      limits: how long the run may take.
      folder: where the results go.
      devices: which share every batch.
    """
    train = batchers[0]
    waste = train.padding_waste
    shapes = "; ".join(f"{s.n_nodes} atoms, {s.n_edges} edges" for s in train.shapes)
    shapes = f"{'one shape' if train.num_shapes == 1 else f'{train.num_shapes} shapes'} ({shapes})"
    references = ", ".join(
        f"{chemical_symbols[z]} {dataset.references[z]:.4f}" for z in dataset.species
    )
    origin = _references_origin(settings.references_origin, start_from, dataset)
    rows = {
        **({} if start_from is None else {"start": f"the network of {start_from}"}),
        "data": described(settings.origin),
        "frames": _frames(settings.validation_origin, dataset),
        "species": " ".join(chemical_symbols[z] for z in dataset.species),
        "references": f"{references} eV ({origin})",
        # zero, added, takes the sign from what is rounded to -0.0
        "energy": f"{round(dataset.energy_per_atom, 4) + 0.0:.4f} eV/atom mean, relative to the "
        "references",
        "force RMS": f"{dataset.force_rms:.4f} eV/Å{_outliers(dataset)}",
        **_labels(training, dataset),
        "neighbours": f"{dataset.mean_neighbors:.1f} per atom within {dataset.cutoff} Å",
        "batches": f"{len(train)} per epoch, padded to {shapes}; "
        f"{waste.nodes:.0%} of the atoms and {waste.edges:.0%} of the edges are padding",
        "programs": _programs(
            dataset,
            batchers,
            limits,
            settings.batch_size,
            first=0 if start_from else 1,
            refits=settings.reference_energies == FIT,
            ends_early=training.schedule == "plateau" or folder.resumed,
        ),
        "backend": _backend(backend, train.dtype),
        "devices": f"{devices.count}"
        + (", each with its part of every batch" if devices.count > 1 else ""),
        "run": folder.path,
    }
    return "\n".join(f"{name:<11}{text}" for name, text in rows.items())


def _backend(backend: str | None, dtype: str) -> str:
    """Return what runs the ops, and which ops something else runs."""
    apart = "".join(f"; {op} on {name}" for op, name in ops.resolve_apart(backend).items())
    platform = jax.devices()[0].platform
    in_parts = jax.config.jax_default_matmul_precision == ops.TF32X3
    matmuls = ", matmuls in three products of TF32" if in_parts else ""
    runs = f"{ops.resolve(backend)} on {platform}{apart}; {dtype}{matmuls}"
    return f"{runs}; fused={ops.resolve_fused(None)}"


def _frames(origin: str | None, dataset: Dataset) -> str:
    atoms = [sample.num_atoms for sample in dataset.train]
    parts = [
        f"{len(dataset.train)} training",
        f"{len(dataset.val)} validation" + (f" ({described(origin)})" if origin else ""),
        *([f"{len(dataset.test)} test"] if dataset.test else []),
        f"{min(atoms)} to {max(atoms)} atoms",
    ]
    if len(dataset.isolated_atoms):
        parts.append(f"isolated atoms besides: {len(dataset.isolated_atoms)}")
    return ", ".join(parts)


def _references_origin(given: str | None, start_from: str | None, dataset: Dataset) -> str:
    if given not in (None, FIT, AVERAGE):
        return given
    if start_from is not None:
        moved = ", moved to the data by least squares" if given == FIT else ""
        return f"those of {start_from}{moved}"
    if not dataset.references_fitted:
        return "isolated atoms of the data"
    return "least squares" if dataset.num_labelled("energy")[0] else "no energies to fit them to"


def _outliers(dataset: Dataset) -> str:
    """Return what the force RMS leaves out, with the frame and atom of the largest force."""
    if not dataset.force_outliers:
        return ""
    sample, atom, force = max(dataset.force_outliers, key=lambda outlier: outlier[2])
    count = len(dataset.force_outliers)
    return (
        f", without {counted(count, 'training frame')} of much larger forces: the "
        f"largest is {force:.4g} eV/Å, {sample.name}, atom {atom} (all are trained on; "
        "training.loss=huber or universal gives them less weight)"
    )


def _labels(training: MoleculeTraining, dataset: Dataset) -> dict[str, str]:
    """Return how many frames have which label, and what is weighted.

    Energies and forces that all frames have, and stress that none has, are left out.
    """
    rows, of = {}, (len(dataset.train), len(dataset.val))
    for name, title in zip(LABELS, ("energies", "forces", "stress"), strict=True):
        counts = dataset.num_labelled(name)
        if not any(counts) if name == "stress" else counts == of:
            continue
        weight = getattr(training, f"{name}_weight")
        used = f"weight {weight}" if weight else f"not trained on (training.{name}_weight=0)"
        validation = counted(of[1], "validation frame")
        rows[title] = f"in {counts[0]} of {of[0]} training and {counts[1]} of {validation}, {used}"
    parts = dataset.train, dataset.val
    weighted = [sum(s.weights != UNWEIGHTED for s in samples) for samples in parts]
    if any(weighted):
        rows["weights"] = (
            f"of their own in {weighted[0]} training and {counted(weighted[1], 'validation frame')}"
        )
    return rows


def _programs(
    dataset: Dataset,
    batchers: list[Batcher],
    limits: Limits,
    batch_size: int,
    *,
    first: int,
    refits: bool,
    ends_early: bool,
) -> str:
    """Return how many programs will be compiled, for as long as the run may last.

    Args:
      dataset, batchers, limits: see `report`.
      batch_size: as the setting of that name.
      first: how many make the initial parameters.
      refits: whether others move the reference energies to the data.
      ends_early: whether it may end before its limit.
    """
    train, val = batchers
    epochs = limits.steps / len(train)
    if math.isinf(epochs):
        training = len(train.shapes)
    else:
        training = len(train.used_shapes(range(1, math.ceil(epochs) + 1)))
    validation = len(val.used_shapes(shuffle=False))
    purpose = "parameters"
    if refits:
        batches = reference_batcher(dataset, batch_size, train.dtype)
        first = len(batches.used_shapes(shuffle=False))
        purpose = "reference energies"
    sets = evaluated_samples(dataset, ended=True)
    last = evaluation_batcher(sets, batch_size, train.dtype)
    last = len(last.used_shapes(shuffle=False))
    at_most = ends_early or math.isfinite(limits.seconds)
    count = f"{'at most ' if at_most else ''}{first + training + validation + last}"
    return (
        f"{count} to compile: {first} for the {purpose}, {training} to train, "
        f"{validation} to validate, {last} for the errors at the end"
    )
