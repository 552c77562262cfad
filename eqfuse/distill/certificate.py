"""The certificate of a student: its errors, and its properties beside those of its teacher."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import ase
import numpy as np
from ase.data import chemical_symbols

import eqfuse
from eqfuse import plots
from eqfuse.certify.check import Certificate
from eqfuse.certify.rows import CHECKS
from eqfuse.certify.subjects import Run
from eqfuse.data.readers.ase_files import of_atoms
from eqfuse.distill import properties
from eqfuse.distill.rounds import KINDS
from eqfuse.distill.sampling import Conditions, Limits, closeness, is_dense, rattled, timestep_of
from eqfuse.distill.sampling import trajectory as run_dynamics
from eqfuse.distill.student import errors_of, seconds
from eqfuse.inference.predict import predict
from eqfuse.runs import page
from eqfuse.runs.files import write_whole
from eqfuse.runs.log import machine, say

FORMAT = 2
"""Of the JSON."""
_MOST_ATOMS = 48
"""Of a structure whose minimum, elastic constants and phonons are computed."""
_EVERY = 10  # steps between frames of the dynamics that are compared
_CHECKED = 0.2  # ps of NVE in `eqfuse check`
_VOLUME, _DISTANCE = "volume (Å³/atom)", "distance (Å)"


def errors_by_group(frames: Sequence[ase.Atoms], predicted: Sequence) -> list[dict]:
    """Return the errors of all frames, of each kind and each temperature, see `errors_of`."""
    groups = {"all": [*range(len(frames))]}
    for k, atoms in enumerate(frames):
        groups.setdefault(str(atoms.info.get("config_type", "-")), []).append(k)
        if "temperature_k" in atoms.info:
            groups.setdefault(f"{atoms.info['temperature_k']:.0f} K", []).append(k)
    return [
        {"group": name, "frames": len(own)}
        | errors_of([frames[k] for k in own], [predicted[k] for k in own])
        for name, own in groups.items()
    ]


def static(atoms: ase.Atoms, calculator, names: Sequence[str]) -> tuple[dict, dict]:
    """Return the properties of a minimum: numbers by name, and curves (x, y) by title and axes."""
    crystal, numbers, curves = is_dense(atoms), {}, {}
    minimum = properties.relaxed(atoms, calculator, cell=crystal)
    if crystal and "volume" in names:
        found = properties.energy_volume(minimum)
        numbers["volume, Å³/atom"] = found["volume"]
        numbers["bulk modulus, GPa"] = found["bulk_modulus"]
        energies = found["energies"] - found["energies"].min()
        curves["Energy by volume", _VOLUME, "energy (eV/atom)"] = found["volumes"], energies
    if crystal and "elastic" in names:
        constants = properties.elastic_constants(minimum)
        for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2), (3, 3), (4, 4), (5, 5)):
            numbers[f"C{i + 1}{j + 1}, GPa"] = constants[i, j]
    if "phonons" in names:
        for point, values in properties.frequencies(minimum).items():
            numbers[f"lowest frequency at {point}, THz"] = values[0]
            numbers[f"highest frequency at {point}, THz"] = values[-1]
            title = f"Frequencies at {point}", "in order", "frequency (THz)"
            curves[title] = np.arange(1, len(values) + 1), values
    return numbers, curves


def dynamic(of, calculator) -> tuple[dict, dict]:
    """Return density (at a pressure) and radial distribution at the lowest temperature."""
    settings, cell, frames = of.settings, of.cells[0], []
    rng, (low, _) = np.random.default_rng([settings.seed, 1]), settings.temperatures()
    pressure = settings.pressures()[0] if of.has_stress else None
    timestep = settings.timestep or timestep_of(cell)
    count = max(int(1000 * settings.picoseconds / timestep) // _EVERY, 1)
    at = Conditions(low, pressure, count, _EVERY, timestep)
    start = rattled(cell, rng, 0.0, 0.01)
    stop = run_dynamics(start, calculator, at, rng, Limits(), frames.append)
    numbers = {f"steps of dynamics at {low:g} K": len(frames) * _EVERY}
    if stop is not None:
        numbers["stopped"] = stop.why
    if not frames:
        return numbers, {}
    frames = frames[len(frames) // 4 :]  # the first quarter equilibrates
    if pressure is not None:
        densities = [*map(properties.density, frames)]
        numbers[f"density at {pressure:g} GPa, g/cm³"] = float(np.mean(densities))
        numbers["its standard deviation"] = float(np.std(densities))
    values = "radial distribution" if cell.pbc.all() else "pairs of an atom (1/Å)"
    title = f"Pairs in dynamics at {low:g} K", _DISTANCE, values
    return numbers, {title: properties.radial_distribution(frames)}


def coverage(frames: Sequence[ase.Atoms]) -> dict:
    """Return the range of what a student was trained on; anything else is extrapolation."""
    dense = [*filter(is_dense, frames)]
    ranges = {
        "temperature_k": [a.info["temperature_k"] for a in frames if "temperature_k" in a.info],
        "density_g_per_cm3": [*map(properties.density, dense)],
        "volume_a3_per_atom": [a.get_volume() / len(a) for a in dense],
        "atoms": [*map(len, frames)],
        "largest_force_ev_per_a": [np.linalg.norm(a.get_forces(), axis=1).max() for a in frames],
        "distance_over_covalent_radii": [*map(closeness, frames)],
    }
    found = {"elements": sorted({s for a in frames for s in a.get_chemical_symbols()})}
    found["kinds"] = sorted({str(a.info.get("config_type", "-")) for a in frames})
    return found | {n: [float(min(v)), float(max(v))] for n, v in ranges.items() if v}


def certify(of, measured: dict) -> dict:
    """Write certificate.html and certificate.json into the folder of a student; return its numbers.

    Args:
      of: the `eqfuse.distill.rounds.Distillation`.
      measured: the errors of its last student.
    """
    run, settings, student = of.folder, of.settings, eqfuse.Calculator(of.folder)
    rounds = len(of.rows("rounds"))
    labels, tested = of.trained_on(rounds), of.frames("new") + of.frames("last", rounds)
    predicted, (slow, fast) = predict(run, tested), seconds([of.teacher, student], of.timed)
    known = {"format": FORMAT, "teacher": settings.teacher, "machine": machine()}
    known["frames"] = {name: len(of.frames(name)) for name in (*KINDS, "failed")}
    known |= {"missed": of.missed(measured), "last": measured}
    known |= {"minutes": round(of.minutes, 2), "errors": errors_by_group(tested, predicted)}
    known["speed"] = {"atoms": len(of.timed), "teacher_s": slow, "student_s": fast}
    known["spread_limit_ev"] = float(student.network.uncertainty["limit"])
    known |= {"trained_on": coverage(labels), "properties": {}, "curves": {}}
    say("certificate: properties of teacher and student")
    small, curves = len(of.starts[0]) <= _MOST_ATOMS, {}
    for name, calculator in (("teacher", of.teacher), ("student", student)):
        own = known["properties"][name] = {}
        parts = [static(of.starts[0], calculator, settings.properties)] if small else []
        parts += [dynamic(of, calculator)] if "dynamics" in settings.properties else []
        for numbers, drawn in parts:
            own |= {n: v if isinstance(v, str) else float(v) for n, v in numbers.items()}
            for title, line in drawn.items():
                curves.setdefault(title, {})[name] = line
    known["curves"] = {
        " | ".join(title): {n: np.array(line).tolist() for n, line in lines.items()}
        for title, lines in curves.items()
    }
    say("certificate: eqfuse check")
    rows = Certificate(Run(run), [of.starts[0]], duration=_CHECKED).rows()
    known["checks"] = [
        {"check": r.name, "error": float(r.error) if np.isfinite(r.error or 0) else None}
        | {"limit": float(r.limit), "unit": r.unit, "verdict": r.verdict, "remark": r.remark}
        for r in rows
    ]
    write_whole(run / "certificate.json", json.dumps(known, indent=1) + "\n")
    pictures = _pictures(tested, predicted, curves)
    write_whole(run / "certificate.html", _page(run, known, pictures))
    return known


def _pictures(frames, predicted, curves: dict) -> dict[str, bytes]:
    pairs = [*zip(frames, predicted, strict=True)]
    errors = np.concatenate([np.linalg.norm(p.forces - a.get_forces(), axis=1) for a, p in pairs])
    spreads = np.concatenate([p.spread.forces for p in predicted])
    parity = [(of_atoms(a), p) for a, p in pairs]
    drawings = {"Predictions of frames that it was not trained on": (plots.parity, parity)}
    drawings["Errors of forces against their spread"] = (plots.spread, spreads, errors)
    for (title, *axes), lines in curves.items():
        drawings[title] = plots.side_by_side, lines, *axes
    pictures = {}
    for title, (draw, *given) in drawings.items():
        draw(*given, content := io.BytesIO())
        pictures[title] = content.getvalue()
    return pictures


def _page(run: Path, known: dict, pictures: dict[str, bytes]) -> str:
    speed, trained, frames = known["speed"], known["trained_on"], known["frames"]
    slow, fast = speed["teacher_s"], speed["student_s"]
    missed = known["missed"]
    aims = "; ".join(missed) if missed else "met: errors, and no trajectory of the student stopped"
    first = [
        ("the aims are missed" if missed else "the aims are", aims),
        ("teacher", known["teacher"]),
        ("labels to train on", str(frames["labels"])),
        (
            "labels of new trajectories",
            f"{frames['new']} of the teacher, {frames['last']} of the student",
        ),
        ("frames at which the teacher failed", str(frames["failed"])),
        ("time", f"{known['minutes']:.1f} minutes"),
        (f"step of {speed['atoms']} atoms", f"{1e3 * slow:.3g} ms teacher, {1e3 * fast:.3g} ms"),
        ("the student is", f"{slow / fast:.1f} times as fast as its teacher"),
        *known["machine"].items(),
    ]
    columns = list(dict.fromkeys(name for row in known["errors"] for name in row))
    errors = [columns, *([_text(row.get(n)) for n in columns] for row in known["errors"])]
    both = [known["properties"][name] for name in ("teacher", "student")]
    compared = [(name, *(_text(own.get(name)) for own in both)) for name in {**both[0], **both[1]}]
    checks = [
        (CHECKS[r["check"]][0], _text(r["error"]), _text(r["limit"]), r["verdict"], r["remark"])
        for r in known["checks"]
    ]
    ranges = [
        (n, ", ".join(v) if n in ("elements", "kinds") else " to ".join(map(_text, v)))
        for n, v in trained.items()
    ]
    others = len({*chemical_symbols[1:104]} - {*trained["elements"]})
    return page.page(
        f"Certificate of {run.name}",
        page.table(first, ["FAILED" if missed else ""]),
        {
            "Errors of frames that it was not trained on (RMSE)": page.table(errors, (), "numbers"),
            "Properties": page.table([("", "teacher", "student"), *compared]),
            **{title: page.picture(title, png) for title, png in pictures.items()},
            "What it was trained on": page.table(ranges)
            + f"<p>It was not trained beyond these ranges, nor on {others} other elements.</p>",
            "Checks": page.table(checks, [row[3].replace(" ", "-") for row in checks]),
            "Use it": page.lines(
                f"eqfuse md {run} START.xyz ensemble=langevin"
                f"  # warns where the spread of an atom is above {known['spread_limit_ev']:g} eV\n"
                f"calculator = eqfuse.Calculator({str(run)!r})  # of ASE"
            ),
        },
    )


def _text(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
