"""Plots of a run: learning curves, parity plots and dynamics, as PNG."""

import csv
import io
from functools import partial
from pathlib import Path

import matplotlib
import matplotlib.figure
import matplotlib.ticker
import numpy as np
from ase.data import chemical_symbols

from eqfuse.runs.files import write_whole

_COLOURS = ("#0072b2", "#d55e00")  # blue and vermilion, which colour-blind readers distinguish
_OF_ELEMENTS = (*_COLOURS, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MAX_POINTS = 20_000
_OTHER = 0.25  # of a temperature at the start, by which that of the second half is another one


def learning_curves(metrics: Path, target: Path, stage: int | None = None):
    """Draw loss, force, energy and, if trained on, stress and Hessian errors of every validation.

    They are drawn by epoch, or by step where an epoch has several. A dashed line is before the
    second stage, whose loss is another one: after the step `stage`.
    """
    columns = _columns(metrics)
    panels = {
        "loss": ("loss", ""),
        "forces_rmse_mev_per_a": ("force RMSE", "meV/Å"),
        "energy_rmse_mev_per_atom": ("energy RMSE", "meV/atom"),
        "stress_rmse_mev_per_a3": ("stress RMSE", "meV/Å³"),
        "hessian_rmse_mev_per_a2": ("Hessian RMSE", "meV/Å²"),
    }
    nothing, parts = np.full(1, np.nan), {"train": "training", "val": "validation"}
    known = {n: [columns.get(f"{part}_{n}", nothing) for part in parts] for n in panels}
    known = {n: both for n, both in known.items() if not np.isnan(np.concatenate(both)).all()}
    by = "epoch" if len(set(columns["epoch"])) == len(columns["epoch"]) else "step"
    later = [] if stage is None else columns[by][columns["step"] > stage]
    figure = _figure(len(known))
    for axes, (name, both) in zip(figure.axes, known.items(), strict=True):
        label, unit = panels[name]
        for values, title, colour in zip(both, parts.values(), _COLOURS, strict=True):
            text, marker = f"{title}: {values[-1]:.4g} {unit}", "o" if len(values) < 30 else None
            axes.plot(columns[by], values, color=colour, marker=marker, markersize=3, label=text)
        if len(later):
            begin = later[0] - 0.5 if by == "epoch" else stage
            axes.axvline(begin, color="0.4", ls="--", lw=1, label="second stage")
        axes.set(xlabel=by, ylabel=f"{label} ({unit})" if unit else label)
        if any((values > 0).any() for values in both):
            axes.set_yscale("log")
            _few_labels(axes.yaxis)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(columns[by]) == 1:  # a point, and no fractions of an epoch around it
            axes.set_xlim(columns[by][0] - 1, columns[by][0] + 1)
        axes.legend(frameon=True, framealpha=0.9, edgecolor="none")
        axes.grid(alpha=0.3, which="both", linewidth=0.5)
    figure.suptitle(f"{metrics.parent.name}, {by} {columns[by][-1]:.0f}", parse_math=False)
    note = "training: mean over the steps since the last validation, before their updates; "
    figure.supxlabel(f"{note}validation: of the averaged parameters", fontsize="small")
    _save(figure, target)


def parity(pairs, target: Path, title: str = ""):
    """Plot predicted against reference energies per atom, force and stress components.

    Forces have the colour of their element, or a grey one beside the seven most frequent.
    Pairs are of a structure, with its `numbers`, and what is predicted for it, both with `energy`,
    eV relative to reference atoms, `forces`, eV/Å, and `stress`, eV/Å^3; labels may be None, but
    not all.
    """
    pairs = list(pairs)
    energies = [(s, p) for s, p in pairs if s.energy is not None]
    energies = [(s.energy / s.num_atoms, p.energy / s.num_atoms) for s, p in energies]
    forces = [(s.forces, p.forces) for s, p in pairs if s.forces is not None]
    stress = [(s.stress, p.stress) for s, p in pairs if s.stress is not None]
    numbers = [np.repeat(s.numbers, 3) for s, _ in pairs if s.forces is not None]
    panels = [
        (energies, "energy per atom", "eV/atom", "meV/atom"),
        (forces, "force component", "eV/Å", "meV/Å"),
        (stress, "stress component", "eV/Å³", "meV/Å³"),
    ]
    panels = [panel for panel in panels if panel[0]]
    figure = _figure(len(panels))
    for axes, (known, name, unit, milli) in zip(figure.axes, panels, strict=True):
        both = [np.concatenate([np.ravel(v) for v in side]) for side in zip(*known, strict=True)]
        reference, predicted = both
        given = ~np.isnan(reference)  # forces of some atoms may be unknown
        reference, predicted = reference[given], predicted[given]
        error = predicted - reference
        low, high = np.min([reference, predicted]), np.max([reference, predicted])
        margin = 0.05 * (high - low) or 0.01
        limits = (low - margin, high + margin)
        axes.plot(limits, limits, color="0.5", linewidth=0.8, zorder=0)
        step, size = -(-len(reference) // _MAX_POINTS), 10 if len(reference) < 2000 else 3
        points = {"s": size, "color": _COLOURS[0], "alpha": 0.4, "linewidths": 0}
        if known is forces and len(colours := _colours(own := np.concatenate(numbers)[given])) > 1:
            points["color"] = [colours.get(z, "0.6") for z in own[::step]]
            _name_colours(axes, colours, others=len(np.unique(own)) > len(colours))
        axes.scatter(reference[::step], predicted[::step], **points)
        labels = {"xlabel": f"reference {name} ({unit})", "ylabel": f"predicted {name} ({unit})"}
        axes.set(xlim=limits, ylim=limits, aspect="equal", **labels)
        mae, rmse = 1e3 * np.abs(error).mean(), 1e3 * np.sqrt((error**2).mean())
        axes.set_title(f"MAE {mae:.4g}, RMSE {rmse:.4g} {milli}", fontsize="medium")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
    figure.suptitle(title, parse_math=False)
    _save(figure, target)


def spread(spreads, errors, target: Path):
    """Draw errors against the spread of a committee, eV/Å, both on logarithmic scales."""
    spreads, errors = np.asarray(spreads), np.asarray(errors)
    positive = (spreads > 0) & (errors > 0)
    spreads, errors = spreads[positive], errors[positive]
    figure = _figure(1)
    [axes] = figure.axes
    step = max(1, -(-len(spreads) // _MAX_POINTS))
    axes.scatter(spreads[::step], errors[::step], s=3, color=_COLOURS[0], alpha=0.4, linewidths=0)
    if len(spreads) >= 20:  # the RMS of tenths of the atoms, by their spread
        tenths = np.array_split(np.argsort(spreads), 10)
        rms = [[np.sqrt(np.mean(v[k] ** 2)) for k in tenths] for v in (spreads, errors)]
        axes.plot(*rms, color=_COLOURS[1], marker="o", markersize=4, label="RMS of tenths")
    if len(spreads):
        ends = [min(spreads.min(), errors.min()), max(spreads.max(), errors.max())]
        axes.plot(ends, ends, color="0.5", linewidth=0.8, zorder=0, label="error = spread")
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            _few_labels(axis)
        axes.legend(fontsize="small")
    axes.set(xlabel="spread of the force (eV/Å)", ylabel="error of the force (eV/Å)")
    _save(figure, target)


def dynamics(table: Path, distances: Path, target: Path):
    """Draw energies, temperature, drift and radial distribution of a simulation.

    At constant pressure, where nothing is conserved, the volume is in place of the drift.
    """
    columns, radial = _columns(table), _columns(distances)
    times, conserved = columns["time_fs"] / 1000, columns["conserved_ev"]
    figure = _figure(2, rows=2)
    energy, temperature, drift, pairs = figure.axes
    for name, colour in zip(("potential", "kinetic"), _COLOURS, strict=True):
        values = columns[f"{name}_ev"]
        change = values - values[0]
        energy.plot(times, change, color=colour, lw=0.8, label=f"{name}, from {values[0]:.4f} eV")
    energy.set(ylabel="change of energy (eV)")
    energy.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False, fontsize=8)
    kelvin = columns["temperature_k"]
    later = kelvin[len(kelvin) // 2 :].mean()
    title = f"mean {kelvin.mean():.1f} K, of the second half {later:.1f} K"
    temperature.set(ylabel="temperature (K)", title=title)
    if abs(later - kelvin[0]) > _OTHER * kelvin[0] > 0:
        note = f"{later:.0f} K where {kelvin[0]:.0f} K were given: a structure out of its minimum "
        note += "heats up, and\none in it loses half of its kinetic energy at constant energy; "
        figure.supxlabel(f"{note}relax it, or give equilibrate=", fontsize="small")
    if np.isnan(conserved).all():
        values, pressure = columns["volume_a3"], columns["pressure_gpa"]
        title = f"mean {values.mean():.1f} Å³, {pressure.mean():.3g} GPa"
        drift.set(ylabel="volume (Å³)", title=title)
    else:
        values = 1000 * (conserved - conserved[0])
        title = f"{values[-1]:.3g} meV at the end"
        drift.set(ylabel="change of conserved energy (meV)", title=title)
    for axes, numbers in ((temperature, kelvin), (drift, values)):
        axes.plot(times, numbers, color=_COLOURS[0])
    for axes in (energy, temperature, drift):
        axes.set_xlabel("time (ps)")
    distance, density = radial
    pairs.plot(radial[distance], radial[density], color=_COLOURS[0])
    labels = {"g": "radial distribution", "pairs_by_a": "pairs of an atom (1/Å)"}
    pairs.set(xlabel="distance (Å)", ylabel=labels[density], xlim=(0, None), ylim=(0, None))
    figure.suptitle(f"{table.parent.name}, {times[-1]:.4g} ps", parse_math=False)
    _save(figure, target)


def walks(walked, target):
    """Draw energy and force along the paths of a check (`eqfuse.certify.paths.Walk`).

    Args:
      walked: the walks.
      target: the PNG file to write, or a binary file.
    """
    figure = _figure(2)
    energy, force = figure.axes
    for walk in walked:
        energy.plot(walk.distances, walk.energies - walk.energies[-1], label=walk.path.name)
        force.plot(walk.distances, walk.forces, label=walk.path.name)
    for axes, label in ((energy, "energy, from that at 12 Å (eV)"), (force, "force (eV/Å)")):
        axes.set(xlabel="distance (Å)", ylabel=label)
        axes.set_yscale("symlog", linthresh=0.1)
    handles, names = force.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4, frameon=False)
    _save(figure, target)


def curves(lines, xlabel: str, ylabel: str, target):
    """Draw several curves in one picture.

    Args:
      lines: (x, y) of each, by its name.
      xlabel, ylabel: with units.
      target: the PNG file to write, or a binary file.
    """
    figure = _figure(1)
    [axes] = figure.axes
    for k, (name, values) in enumerate(lines.items()):
        axes.plot(*values, color=_OF_ELEMENTS[k], ls=("-", "--")[k % 2], lw=1, label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.legend(frameon=False)
    _save(figure, target)


def _colours(numbers: np.ndarray) -> dict[int, str]:
    """Return colours of the most frequent of some atomic numbers, by number."""
    found, counts = np.unique(numbers, return_counts=True)
    most = found[np.argsort(-counts, kind="stable")]
    return dict(zip(most.tolist(), _OF_ELEMENTS, strict=False))


def _name_colours(axes, colours: dict[int, str], *, others: bool):
    """Name elements by their colours, and the others by grey, in a legend."""
    names = {chemical_symbols[z]: colour for z, colour in colours.items()}
    if others:
        names["others"] = "0.6"
    for name, colour in names.items():
        axes.scatter([], [], color=colour, s=20, label=name)
    axes.legend(fontsize="small", framealpha=0.9, edgecolor="none", loc="upper left")


def _save(figure, target):
    """Write the PNG to a file, which is whole or not there, or a binary file that is open."""
    content = io.BytesIO()
    figure.savefig(content, dpi=150)
    write = partial(write_whole, target) if isinstance(target, Path) else target.write
    write(content.getvalue())


def _few_labels(axis):
    """Label a logarithmic axis at whole powers, a short one at 2 and 5 times these or evenly."""
    low, high = axis.get_data_interval()
    between = (1, 2, 5) if high < 100 * low else (1,)
    logarithmic = matplotlib.ticker.LogLocator(subs=between)
    axis.set_major_locator(logarithmic if high > 4 * low else matplotlib.ticker.MaxNLocator(5))
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def _columns(table: Path) -> dict[str, np.ndarray]:
    with open(table, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    if not rows:
        raise ValueError(f"there is no whole line in {table}")
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def _figure(columns: int, rows: int = 1) -> matplotlib.figure.Figure:
    # Not through pyplot: that would choose a backend for the whole process.
    size = 4.6 * columns, 4.2 * rows
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    figure.subplots(rows, columns)
    for axes in figure.axes:
        axes.grid(alpha=0.3, linewidth=0.5)
    return figure
