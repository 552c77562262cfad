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
from eqfuse.distill.sampling import Limits, closeness, is_dense, rattled, trajectory
from eqfuse.inference.predict import predict
from eqfuse.runs import page
from eqfuse.runs.files import write_whole
from eqfuse.runs.log import machine, say

FORMAT = 1
"""Of the JSON."""
_MOST_ATOMS = 24
"""Of a structure whose minimum, elastic constants and phonons are computed."""
_CHECKED = 0.2  # ps of NVE in `eqfuse check`


def errors_by_group(frames: Sequence[ase.Atoms], predicted) -> list[dict]:
    """Return RMSE of all frames, each kind and each temperature: meV/atom, meV/Å and meV/Å^3."""
    groups = {"all": [*range(len(frames))]}
    for k, atoms in enumerate(frames):
        groups.setdefault(str(atoms.info.get("config_type", "-")), []).append(k)
        if "temperature_k" in atoms.info:
            groups.setdefault(f"{atoms.info['temperature_k']:.0f} K", []).append(k)
    rows = []
    for name, own in groups.items():
        pairs = [(frames[k], predicted[k]) for k in own]
        energies = [(p.energy - a.get_potential_energy()) / len(a) for a, p in pairs]
        forces = np.concatenate([(p.forces - a.get_forces()).ravel() for a, p in pairs])
        row = {"group": name, "frames": len(own), "energy_mev_per_atom": _rms(energies)}
        row["forces_mev_per_a"] = _rms(forces)
        stressed = [(a, p) for a, p in pairs if "stress" in a.calc.results]
        if stressed:
            errors = [p.stress - a.get_stress(voigt=False) for a, p in stressed]
            row["stress_mev_per_a3"] = _rms(errors)
        rows.append(row)
    return rows


def _rms(errors) -> float:
    return 1e3 * float(np.sqrt(np.mean(np.square(errors))))


def compared(atoms: ase.Atoms, calculators: dict, names: Sequence[str]) -> dict:
    """Return the properties of a structure by each calculator, see `eqfuse.distill.properties`.

    Returns:
      by name of the property and of the calculator; a text where a property was not computed.
    """
    found = {}
    crystal = is_dense(atoms)
    wanted = [n for n in ("volume", "elastic", "phonons") if n in names]
    wanted = [n for n in wanted if crystal or n == "phonons"]
    if wanted and len(atoms) > _MOST_ATOMS:
        return dict.fromkeys(wanted, f"not computed: more than {_MOST_ATOMS} atoms in START")
    for name, calculator in calculators.items():
        minimum = properties.relaxed(atoms, calculator, cell=crystal)
        for wanted_one in wanted:
            of = found.setdefault(wanted_one, {})
            if wanted_one == "volume":
                of[name] = properties.energy_volume(minimum)
            elif wanted_one == "elastic":
                of[name] = properties.elastic_constants(minimum).tolist()
            else:
                at = properties.frequencies(minimum)
                of[name] = {point: values.tolist() for point, values in at.items()}
    return found


def _dynamics(of, calculators: dict) -> dict:
    """Return g(r) and density in dynamics at the lowest temperature, of each calculator."""
    settings, found = of.settings, {}
    cell, (low, _) = of.cells[0], settings.temperatures()
    pressure = settings.pressures()[0] if of.has_stress else None
    at = of.conditions(low, pressure, cell)
    at = at._replace(steps=max(int(1000 * settings.picoseconds / at.timestep), at.every))
    for name, calculator in calculators.items():
        rng = np.random.default_rng([settings.seed, 1])
        start = rattled(cell, rng, 0.0, 0.01)
        frames, stopped = trajectory(start, calculator, at, rng, Limits())
        frames = frames[len(frames) // 4 :]  # the first quarter equilibrates
        if not frames:
            found[name] = {"stopped": stopped}
            continue
        distances, values = properties.radial_distribution(frames)
        own = {"distances": distances.tolist(), "values": values.tolist(), "stopped": stopped}
        if pressure is not None:
            densities = [properties.density(atoms) for atoms in frames]
            own |= {"density": float(np.mean(densities)), "deviation": float(np.std(densities))}
        found[name] = own | {"temperature_k": low, "pressure_gpa": pressure, "steps": at.steps}
    return found


def coverage(frames: Sequence[ase.Atoms]) -> dict:
    """Return the range of what a student was trained on; anything else is extrapolation."""
    found = {"elements": sorted({s for a in frames for s in a.get_chemical_symbols()})}
    temperatures = [float(a.info["temperature_k"]) for a in frames if "temperature_k" in a.info]
    volumes = [a.get_volume() / len(a) for a in frames if is_dense(a)]
    forces = [float(np.linalg.norm(a.get_forces(), axis=1).max()) for a in frames]
    ranges = {"temperature_k": temperatures, "volume_a3_per_atom": volumes}
    ranges |= {"atoms": [len(a) for a in frames], "largest_force_ev_per_a": forces}
    ranges["distance_over_covalent_radii"] = [closeness(a) for a in frames]
    found |= {n: [min(v), max(v)] for n, v in ranges.items() if v}
    return found | {"kinds": sorted({str(a.info.get("config_type", "-")) for a in frames})}


def _checks(run: Path, frames: Sequence[ase.Atoms]) -> list[dict]:
    subject = Run(run)
    certificate = Certificate(subject, [frames[0]], duration=_CHECKED)
    rows = []
    for row in certificate.rows():
        finite = row.error is not None and np.isfinite(row.error)
        error = float(row.error) if finite else None
        known = {"check": row.name, "error": error, "limit": float(row.limit), "unit": row.unit}
        rows.append(known | {"verdict": row.verdict, "remark": row.remark})
    return rows


def certify(of, run: Path) -> dict:
    """Write certificate.html and certificate.json into the folder of a student; return its numbers.

    Args:
      of: the `eqfuse.distill.rounds.Distillation`.
      run: the folder of its student.
    """
    new, labels, settings = of.frames("new"), of.frames("labels"), of.settings
    predicted = predict(run, new)
    calculators = {"teacher": of.teacher, "student": eqfuse.Calculator(run)}
    known = {"format": FORMAT, "teacher": settings.teacher, "machine": machine()}
    known |= {"labels": len(labels), "new": len(new), "failed": len(of.frames("failed"))}
    known["minutes"] = round(of.minutes, 2)
    say("certificate: errors on new trajectories")
    known["errors"] = errors_by_group(new, predicted)
    slow, fast = of.speeds()
    known["speed"] = {"atoms": len(of.timed), "teacher_s": slow, "student_s": fast}
    known["speed"]["factor"] = slow / fast
    say("certificate: properties of teacher and student")
    known["properties"] = compared(of.starts[0], calculators, settings.properties)
    if "dynamics" in settings.properties:
        known["properties"]["dynamics"] = _dynamics(of, calculators)
    known["trained_on"], known["checks"] = coverage(labels), []
    known["largest_spread_ev"] = float(max(p.spread.energies.max() for p in predicted))
    pictures = _pictures(new, predicted, known["properties"])
    _write(run, known, pictures)  # whole but for the checks, which take minutes
    say("certificate: eqfuse check")
    known["checks"] = _checks(run, of.starts)
    _write(run, known, pictures)
    return known


def _write(run: Path, known: dict, pictures: dict[str, bytes]):
    write_whole(run / "certificate.json", json.dumps(known, indent=1) + "\n")
    write_whole(run / "certificate.html", _page(run, known, pictures))


def _pictures(new, predicted, found: dict) -> dict[str, bytes]:
    pictures = {}

    def drawn(title: str, draw, *given):
        draw(*given, content := io.BytesIO())
        pictures[title] = content.getvalue()

    structures = [of_atoms(atoms) for atoms in new]
    drawn(
        "Predictions for new trajectories", plots.parity, [*zip(structures, predicted, strict=True)]
    )
    spreads = np.concatenate([p.spread.forces for p in predicted])
    pairs = zip(new, predicted, strict=True)
    errors = [np.linalg.norm(p.forces - a.get_forces(), axis=1) for a, p in pairs]
    drawn("Errors of forces against their spread", plots.spread, spreads, np.concatenate(errors))
    if isinstance(volumes := found.get("volume"), dict):
        lines = {
            n: (v["volumes"], np.subtract(v["energies"], min(v["energies"])))
            for n, v in volumes.items()
        }
        labels = "volume (Å³/atom)", "energy (eV/atom)"
        drawn("Energy by volume", plots.side_by_side, lines, *labels)
    lines = {
        n: (v["distances"], v["values"])
        for n, v in found.get("dynamics", {}).items()
        if "values" in v
    }
    if lines:
        labels = "distance (Å)", "radial distribution"
        drawn("Pairs in dynamics", plots.side_by_side, lines, *labels)
    return pictures


def _properties_table(found: dict) -> list[tuple[str, ...]]:
    """Return rows of a property: its name, the teacher's, the student's."""
    rows, names = [("", "teacher", "student")], ("teacher", "student")

    def row(title: str, values):
        rows.append((title, *(f"{v:.4g}" if isinstance(v, float) else v for v in values)))

    for name, own in found.items():
        if isinstance(own, str):
            row(name, (own, ""))
        elif name == "volume":
            row("volume, Å³/atom", [own[n]["volume"] for n in names])
            row("bulk modulus, GPa", [own[n]["bulk_modulus"] for n in names])
        elif name == "elastic":
            for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2), (3, 3), (4, 4), (5, 5)):
                row(f"C{i + 1}{j + 1}, GPa", [own[n][i][j] for n in names])
        elif name == "phonons":
            for point in own["teacher"]:
                texts = [" ".join(f"{f:.2f}" for f in own[n][point][-12:]) for n in names]
                row(f"frequencies at {point}, THz", texts)
        elif name == "dynamics" and all("density" in own[n] for n in names):
            row("density, g/cm³", [own[n]["density"] for n in names])
    return rows


def _page(run: Path, known: dict, pictures: dict[str, bytes]) -> str:
    speed, trained = known["speed"], known["trained_on"]
    columns = list(dict.fromkeys(name for row in known["errors"] for name in row))
    cells = [[_text(row.get(name)) for name in columns] for row in known["errors"]]
    checks = [
        (CHECKS[r["check"]][0], _text(r["error"]), _text(r["limit"]), r["verdict"], r["remark"])
        for r in known["checks"]
    ]
    missing = sorted({*chemical_symbols[1:104]} - {*trained["elements"]})
    ranges = [
        (name, " to ".join(map(_text, v)) if name not in ("elements", "kinds") else ", ".join(v))
        for name, v in trained.items()
    ]
    first = [
        ("teacher", known["teacher"]),
        ("labels", f"{known['labels']} to train on, {known['new']} of new trajectories"),
        ("frames at which the teacher failed", str(known["failed"])),
        ("time", f"{known['minutes']:.1f} minutes"),
        (
            f"step of {speed['atoms']} atoms",
            f"{1e3 * speed['teacher_s']:.3g} ms teacher, {1e3 * speed['student_s']:.3g} ms "
            f"student, {speed['factor']:.1f} times as fast",
        ),
        *known["machine"].items(),
    ]
    limit = f"{2 * known['largest_spread_ev']:.2g}"
    sections = {
        "Errors on new trajectories (RMSE)": page.table([columns, *cells], kind="numbers"),
        "Properties": page.table(_properties_table(known["properties"])),
        **{title: page.picture(title, png) for title, png in pictures.items()},
        "What it was trained on": page.table(ranges)
        + f"<p>Beyond these ranges, and for {len(missing)} other elements, it was not trained.</p>",
        "Checks": page.table(checks, [row[3].replace(" ", "-") for row in checks]),
        "Use it": page.lines(
            f"eqfuse md {run} START.xyz ensemble=langevin max_spread={limit}"
            "  # stops beyond what it knows\n"
            f"calculator = eqfuse.Calculator({str(run)!r}, spread=True)  # of ASE"
        ),
    }
    return page.page(f"Certificate of {run.name}", page.table(first), sections)


def _text(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
