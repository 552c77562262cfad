"""Data of another scale need no other programs: what follows from labels is no constant of them."""

import ase.io
import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from eqfuse.train.main import main


@pytest.fixture
def misses(tmp_path):
    """Programs that a cache of compiled programs did not have, which no other test uses."""
    events, active = [], True

    def listen(event, **_):
        if active and event == "/jax/compilation_cache/cache_misses":
            events.append(event)

    settings = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(tmp_path / "programs"),
        # JAX does not count programs that are compiled faster
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in settings}

    def use(settings):
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # it has looked for its folder once
        jax.clear_caches()

    use(settings)
    jax.monitoring.register_event_listener(listen)
    yield events
    active = False  # there is no public way to take a listener away
    use(before)


@pytest.mark.slow
def test_other_labels_and_weights_use_the_same_programs(water, tiny, tmp_path, misses):
    frames = ase.io.read(water, ":")
    for atoms in frames:
        results = atoms.calc.results
        results["energy"], results["forces"] = 3 * results["energy"], 3 * results["forces"]
    ase.io.write(tmp_path / "other.xyz", frames, format="extxyz")
    settings = [*tiny, "epochs=1", "data.check=off", "dtype=float64"]
    assert main([f"data={water}", *settings, f"run={tmp_path / 'first'}"]) == 0
    assert len(misses) > 3
    misses.clear()
    jax.clear_caches()
    more = ["training.energy_weight=7", "training.ema_decay=0.9", f"run={tmp_path / 'second'}"]
    assert main([f"data={tmp_path / 'other.xyz'}", *settings, *more]) == 0
    assert misses == []
