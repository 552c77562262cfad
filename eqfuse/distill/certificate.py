"""The certificate of a student: its errors, and its properties beside those of its teacher."""

import io
import json
import operator
from argparse import Namespace
from collections.abc import Sequence
from shlex import quote

import ase
import numpy as np

import eqfuse
from eqfuse import plots
from eqfuse.certify import properties
from eqfuse.certify.check import Certificate
from eqfuse.certify.report import Report
from eqfuse.certify.subjects import Run
from eqfuse.data import error_table, of_atoms
from eqfuse.distill import sampling
from eqfuse.distill.settings import KINDS
from eqfuse.inference import predict
from eqfuse.md.structures import pair_counts, radial_distribution
from eqfuse.runs import machine, page, say, write_whole

FORMAT = 5  # of the JSON
MOST_ATOMS = 48  # of a structure whose minimum, elastic constants and phonons are computed
_VOLUME = "volume_a3_per_atom"
_PAIRS = 6.0, 0.1  # Å, the largest distance, and the width of a bin
_EVERY = 10  # steps between frames of the dynamics that are compared
_CHECKED = 0.2  # ps of NVE in `eqfuse check`


def errors_by_group(frames: Sequence[ase.Atoms], predicted: Sequence) -> list[dict]:
    """Return the rows of `error_table`, and one for each temperature."""
    structures, kelvin = [*map(of_atoms, frames)], [a.info.get("temperature_k") for a in frames]
    rows = error_table(structures, predicted)
    for value in sorted({*kelvin} - {None}):
        own = [k for k, other in enumerate(kelvin) if other == value]
        part = [structures[k] for k in own], [predicted[k] for k in own]
        rows.append(error_table(*part)[0] | {"group": f"{value:.0f} K"})
    return rows


def dynamic(of, calculator) -> tuple[dict, dict]:
    """Return density (at a pressure) and radial distribution at the lowest temperature."""
    settings, cell, numbers, frames = of.settings, of.cells[0], {}, []
    rng, low = np.random.default_rng([settings.seed, 1]), settings.kelvin[0]
    pressure, timestep = settings.gpa[0] if of.has_stress else None, sampling.timestep_of(cell)
    count = max(int(1000 * settings.picoseconds / timestep) // _EVERY, 1)
    at = sampling.Conditions(low, pressure, count, _EVERY, timestep)
    given = sampling.rattled(cell, rng, 0.0, 0.01), calculator, at, rng, sampling.Limits()
    for frame, why, _ in sampling.trajectory(*given):
        frames += [] if why else [frame]
        numbers |= {"stopped": why} if why else {}
    numbers[f"steps of dynamics at {low:g} K"] = len(frames) * _EVERY
    if not frames:
        return numbers, {}
    frames = frames[len(frames) // 4 :]  # the first quarter equilibrates
    if pressure is not None:
        densities = [*map(properties.density, frames)]
        numbers[f"density at {pressure:g} GPa, g/cm³"] = float(np.mean(densities))
        numbers["its standard deviation"] = float(np.std(densities))
    periodic = cell.pbc.all()
    counts = np.mean([pair_counts(atoms, *_PAIRS) for atoms in frames], axis=0)
    values = "radial distribution" if periodic else "pairs of an atom (1/Å)"
    title = f"Pairs in dynamics at {low:g} K", "distance (Å)", values
    return numbers, {title: radial_distribution(counts, _PAIRS[1], periodic)}


def _of_minimum(*given) -> tuple[dict, dict]:
    try:
        return properties.of_minimum(*given)
    except Exception as error:  # of any calculator, for structures that no label is like
        return {"stopped near its minimum": f"{type(error).__name__}: {error}".splitlines()[0]}, {}


def coverage(frames: Sequence[ase.Atoms]) -> dict:
    """Return the range of what a student was trained on; anything else is extrapolation."""
    dense = [*filter(properties.is_dense, frames)]
    ranges = {
        "temperature_k": [a.info["temperature_k"] for a in frames if "temperature_k" in a.info],
        "density_g_per_cm3": [*map(properties.density, dense)],
        _VOLUME: [a.get_volume() / len(a) for a in dense],
        "atoms": [*map(len, frames)],
        "largest_force_ev_per_a": [np.linalg.norm(a.get_forces(), axis=1).max() for a in frames],
        "distance_over_covalent_radii": [*properties.closeness(frames).values()],
    }
    found = {"elements": sorted({s for a in frames for s in a.get_chemical_symbols()})}
    found["kinds"] = sorted({str(a.info.get("config_type", "-")) for a in frames})
    return found | {n: [float(min(v)), float(max(v))] for n, v in ranges.items() if v}


def unseen(frames: Sequence[ase.Atoms], predicted: Sequence, least: float, limit: float) -> int:
    """Count frames with an RMSE of forces above `least`, meV/Å, and no spread above `limit`, eV."""
    pairs = zip(frames, predicted, strict=True)
    wrong = [1e3 * np.sqrt(np.mean((p.forces - a.get_forces()) ** 2)) > least for a, p in pairs]
    seen = [p.spread.energies.max() > limit for p in predicted]
    return int(sum(map(operator.gt, wrong, seen)))


def held(of, number: int) -> dict:
    """Return the range of what was simulated by the last student below where it was stopped."""
    rows = [r for r in of.rows("trajectories") if (r["kind"], r["round"]) == ("last", str(number))]
    stopped = min((float(r["temperature_k"]) for r in rows if r["stopped"]), default=np.inf)
    frames = [a for a in of.frames("last", number) if a.info["temperature_k"] < stopped]
    return coverage(frames) if frames else {}


def certify(of, measured: dict) -> dict:
    """Write the certificate of a `Distillation` with the errors of its last student; return it."""
    run, settings, rounds, [start, *_] = of.folder, of.settings, len(of.rows("rounds")), of.starts
    student, last = eqfuse.Calculator(run), of.frames("last", rounds)
    predicted = predict(run, tested := last + of.frames("new"))
    limit, wrong = float(student.network.uncertainty["limit"]), 3 * settings.forces
    slow, fast = properties.seconds([of.teacher, student], of.timed)
    known = {
        "format": FORMAT,
        "missed": of.missed(measured),
        "teacher": settings.teacher,
        "frames": {name: len(of.frames(name)) for name in (*KINDS, "failed")},
        "minutes": round(of.minutes, 2),
        "speed": {"atoms": len(of.timed), "teacher_s": slow, "student_s": fast},
        "machine": machine(),
        "spread_limit_ev": limit,
        "unseen": {"frames": unseen(last, predicted[: len(last)], wrong, limit), "of": len(last)},
        "holds": held(of, rounds),
        "errors": errors_by_group(tested, predicted),
        "trained_on": coverage(of.trained_on(rounds)),
    }
    say("certificate: properties of teacher and student")
    both, curves = {"teacher": {}, "student": {}}, {}
    for (name, own), calculator in zip(both.items(), (of.teacher, student), strict=True):
        given, small = (start, calculator, settings.properties), len(start) <= MOST_ATOMS
        parts = [_of_minimum(*given)] if small else []
        parts += [dynamic(of, calculator)] if "dynamics" in settings.properties else []
        for numbers, drawn in parts:
            own |= numbers
            for title, line in drawn.items():
                curves.setdefault(title, {})[name] = np.array(line).tolist()
    known |= {"properties": both, "curves": {" | ".join(t): v for t, v in curves.items()}}
    say("certificate: eqfuse check")
    check = Certificate(Run(run), [start], duration=_CHECKED)
    report = Report(check, Namespace(picoseconds=_CHECKED))
    report.rows += check.rows()
    report.write(run / "check.html", None)
    known |= {"check": report.verdict, "checks": report.as_json()["checks"]}
    write_whole(run / "certificate.json", json.dumps(known, indent=1))
    write_whole(run / "certificate.html", _page(run, known, _pictures(tested, predicted, curves)))
    return known


def _pictures(frames: Sequence, predicted: Sequence, curves: dict) -> dict[str, str]:
    pairs = [*zip(map(of_atoms, frames), predicted, strict=True)]
    errors = np.concatenate([np.linalg.norm(p.forces - s.forces, axis=1) for s, p in pairs])
    spreads = np.concatenate([p.spread.forces for p in predicted])
    drawings = {"Predictions of frames that it was not trained on": (plots.parity, pairs)}
    drawings["Errors of forces against their spread"] = (plots.spread, spreads, errors)
    for (title, *axes), lines in curves.items():
        drawings[title] = plots.curves, lines, *axes
    pictures = {}
    for title, (draw, *given) in drawings.items():
        draw(*given, content := io.BytesIO())
        pictures[title] = page.picture(title, content.getvalue())
    return pictures


def _page(run, known: dict, pictures: dict[str, str]) -> str:
    missed, rows, both = known["missed"], known["errors"], known["properties"]
    (atoms, slow, fast), unseen = known["speed"].values(), known["unseen"]
    first = {
        "aims missed" if missed else "aims met": "; ".join(missed) or "all",
        "the student is": f"{slow / fast:.1f} times as fast as its teacher, {known['teacher']}",
        f"step of {atoms} atoms": f"{1e3 * slow:.3g} ms teacher, {1e3 * fast:.3g} ms student",
        "frames": ", ".join(f"{name} {count}" for name, count in known["frames"].items()),
        "minutes": _text(known["minutes"]),
        "it was simulated at": "; ".join(
            f"{_text(known['holds'][name])} {unit}"
            for name, unit in (("temperature_k", "K"), (_VOLUME, "Å³/atom"))
            if name in known["holds"]
        ),
        "wrong, and unseen by its spread": f"{unseen['frames']} of {unseen['of']} last frames",
        "eqfuse check": f"{known['check']}; see check.html",
        **known["machine"],
    }
    columns = [name for name in rows[0] if not name.endswith("_frames")]
    errors = [columns, *([_text(row.get(name)) for name in columns] for row in rows)]
    names = dict.fromkeys([*both["teacher"], *both["student"]])
    compared = [[name, *(_text(own.get(name)) for own in both.values())] for name in names]
    ranges = [(name, _text(value)) for name, value in known["trained_on"].items()]
    use = (
        f"eqfuse md {quote(str(run))} START.xyz ensemble=langevin"
        f"  # warns where the spread of an atom is above {known['spread_limit_ev']:g} eV\n"
        f"calculator = eqfuse.Calculator({str(run)!r})  # of ASE"
    )
    sections = {
        "Errors of frames that it was not trained on": page.table(errors, (), "numbers"),
        "What it was trained on; all else is extrapolation": page.table(ranges),
        "Properties": page.table([("", *both), *compared]),
        **pictures,
        "Use it": page.lines(use),
    }
    facts = page.table(first.items(), ["FAILED" if missed else "bold"])
    return page.page(f"Certificate of {run.name}", facts, sections)


def _text(value) -> str:
    if isinstance(value, list):
        return (" to " if isinstance(value[0], float) else ", ").join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
