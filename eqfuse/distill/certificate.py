"""The certificate of a student: its errors, and its properties beside those of its teacher."""

import io
import json
from argparse import Namespace
from collections.abc import Sequence

import ase
import numpy as np
from ase.data import chemical_symbols

import eqfuse
from eqfuse import plots
from eqfuse.certify.check import Certificate
from eqfuse.certify.report import Report
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

FORMAT = 3
"""Of the JSON."""
_MOST_ATOMS = 48  # of a structure whose minimum, elastic constants and phonons are computed
_EVERY = 10  # steps between frames of the dynamics that are compared
_CHECKED = 0.2  # ps of NVE in `eqfuse check`


def errors_by_group(frames: Sequence[ase.Atoms], predicted: Sequence) -> list[dict]:
    """Return the errors of each kind, each temperature and all frames, see `errors_of`."""
    groups = {}
    for k, atoms in enumerate(frames):
        names = [str(atoms.info.get("config_type", "-"))]
        if "temperature_k" in atoms.info:
            names.append(f"{atoms.info['temperature_k']:.0f} K")
        for name in (*names, "all"):
            groups.setdefault(name, []).append(k)
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
        title = "Energy by volume", "volume (Å³/atom)", "energy (eV/atom)"
        curves[title] = found["volumes"], energies
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
    title = f"Pairs in dynamics at {low:g} K", "distance (Å)", values
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
    run, settings, rounds = of.folder, of.settings, len(of.rows("rounds"))
    student, tested = eqfuse.Calculator(run), of.frames("last", rounds) + of.frames("new")
    predicted, curves = predict(run, tested), {}
    known = {"format": FORMAT, "teacher": settings.teacher, "missed": of.missed(measured)}
    known |= {"errors": errors_by_group(tested, predicted), "machine": machine()}
    known["frames"] = {name: len(of.frames(name)) for name in (*KINDS, "failed")}
    known |= {"minutes": round(of.minutes, 2), "trained_on": coverage(of.trained_on(rounds))}
    slow, fast = seconds([of.teacher, student], of.timed)
    known["speed"] = {"atoms": len(of.timed), "teacher_s": slow, "student_s": fast}
    known["spread_limit_ev"] = float(student.network.uncertainty["limit"])
    say("certificate: properties of teacher and student")
    known["properties"] = {}
    for name, calculator in (("teacher", of.teacher), ("student", student)):
        own, parts = known["properties"].setdefault(name, {}), []
        if len(of.starts[0]) <= _MOST_ATOMS:
            parts.append(static(of.starts[0], calculator, settings.properties))
        if "dynamics" in settings.properties:
            parts.append(dynamic(of, calculator))
        for numbers, drawn in parts:
            own |= {n: v if isinstance(v, str) else float(v) for n, v in numbers.items()}
            for title, line in drawn.items():
                curves.setdefault(title, {})[name] = np.array(line).tolist()
    known["curves"] = {" | ".join(title): lines for title, lines in curves.items()}
    say("certificate: eqfuse check")
    check = Certificate(Run(run), [of.starts[0]], duration=_CHECKED)
    report = Report(check, Namespace(picoseconds=_CHECKED))
    report.rows += check.rows()
    report.write(run / "check.html", None)
    known |= {"check": report.verdict, "checks": report.as_json()["checks"]}
    write_whole(run / "certificate.json", json.dumps(known, indent=1) + "\n")
    pictures = _pictures([*zip(tested, predicted, strict=True)], curves)
    write_whole(run / "certificate.html", _page(run, known, pictures))
    return known


def _pictures(pairs: Sequence, curves: dict) -> dict[str, str]:
    errors = np.concatenate([np.linalg.norm(p.forces - a.get_forces(), axis=1) for a, p in pairs])
    spreads = np.concatenate([p.spread.forces for _, p in pairs])
    parity = [(of_atoms(a), p) for a, p in pairs]
    drawings = {"Predictions of frames that it was not trained on": (plots.parity, parity)}
    drawings["Errors of forces against their spread"] = (plots.spread, spreads, errors)
    for (title, *axes), lines in curves.items():
        drawings[title] = plots.curves, lines, *axes
    pictures = {}
    for title, (draw, *given) in drawings.items():
        draw(*given, content := io.BytesIO())
        pictures[title] = page.picture(title, content.getvalue())
    return pictures


def _page(run, known: dict, pictures: dict[str, str]) -> str:
    frames, missed, trained = known["frames"], known["missed"], known["trained_on"]
    atoms, slow, fast = known["speed"].values()
    first = [
        ("aims missed" if missed else "aims met", "; ".join(missed) or "all"),
        ("teacher", known["teacher"]),
        ("labels", ", ".join(f"{name} {count}" for name, count in frames.items())),
        ("time", f"{known['minutes']:.1f} minutes"),
        (f"step of {atoms} atoms", f"{1e3 * slow:.3g} ms teacher, {1e3 * fast:.3g} ms student"),
        ("the student is", f"{slow / fast:.1f} times as fast as its teacher"),
        ("eqfuse check", f"{known['check']}; see check.html"),
        *known["machine"].items(),
    ]
    columns = list(dict.fromkeys(name for row in known["errors"] for name in row))
    errors = [columns, *([_text(row.get(n)) for n in columns] for row in known["errors"])]
    both = [known["properties"][name] for name in ("teacher", "student")]
    compared = [(name, *(_text(own.get(name)) for own in both)) for name in {**both[0], **both[1]}]
    ranges = [
        (n, ", ".join(v) if n in ("elements", "kinds") else " to ".join(map(_text, v)))
        for n, v in trained.items()
    ]
    others = len({*chemical_symbols[1:104]} - {*trained["elements"]})
    beyond = f"<p>It was not trained beyond these ranges, nor on {others} other elements.</p>"
    use = (
        f"eqfuse md {run} START.xyz ensemble=langevin"
        f"  # warns where the spread of an atom is above {known['spread_limit_ev']:g} eV\n"
        f"calculator = eqfuse.Calculator({str(run)!r})  # of ASE"
    )
    sections = {
        "Errors (RMSE) of frames that it was not trained on": page.table(errors, (), "numbers"),
        "What it was trained on": page.table(ranges) + beyond,
        "Properties": page.table([("", "teacher", "student"), *compared]),
        **pictures,
        "Use it": page.lines(use),
    }
    title = f"Certificate of {run.name}"
    return page.page(title, page.table(first, ["FAILED" if missed else "bold"]), sections)


def _text(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
