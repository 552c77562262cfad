"""Settings that go together, by name: `python train.py model=mace preset=large`.

`small`, `medium` and `large` set the network only. `3bpa` and `rmd17` are what the papers trained
on those data, and set the training too, which a run on Tetris does not have. What is given on the
command line beside a preset wins over it.
"""

# Batatia et al. 2022, appendix A.5, of MACE and of NequIP alike. There the energy of a molecule has
# a weight of 1 and the forces 1000: N^2 / 1000 and 1 for the energy per atom, of N atoms. MACE also
# had a weight decay of 5e-7 on some weights, part of a gradient some 1000 times ours; left out.
_PUBLISHED = {
    "training.optimizer": "amsgrad",
    "training.lr": 0.01,
    "training.schedule": "plateau",
    "training.patience": 50,
    "training.factor": 0.8,
    "training.ema_decay": 0.99,
    "training.forces_weight": 1.0,
    "data.batch_size": 5,
    "epochs": 2000,
}
_3BPA = {**_PUBLISHED, "training.energy_weight": 0.729, "data.val": 50, "dtype": "float64"}
# N is 9 to 24 in rMD17, 21 for aspirin
_RMD17 = {**_PUBLISHED, "training.energy_weight": 0.441, "data.train": 950, "data.val": 50}


def _nequip(layers: int, channels: int, lmax: int, cutoff: float) -> dict:
    return {
        "model.layers": layers,
        "model.channels": channels,
        "model.lmax": lmax,
        "model.parity": True,
        "model.cutoff": cutoff,
        "model.num_bessel": 8,
        "model.poly_power": 6,
        "model.radial_layers": 2,
        "model.radial_hidden": 64,
    }


def _mace(channels: int, hidden_lmax: int, radial_layers: int) -> dict:
    return {
        "model.layers": 2,
        "model.channels": channels,
        "model.lmax": 3,
        "model.hidden_lmax": hidden_lmax,
        "model.correlation": 3,
        "model.cutoff": 5.0,
        "model.num_bessel": 8,
        "model.poly_power": 5,
        "model.radial_layers": radial_layers,
        "model.radial_hidden": 64,
        "model.readout_hidden": 16,
    }


def _allegro(layers: int, channels: int, lmax: int, cutoff: float, latent_dim: int) -> dict:
    return {
        "model.layers": layers,
        "model.channels": channels,
        "model.lmax": lmax,
        "model.parity": True,
        "model.latent_dim": latent_dim,
        "model.two_body_layers": 4,
        "model.latent_layers": 3,
        "model.latent_activation": True,
        "model.readout_hidden": 128,
        "model.cutoff": cutoff,
        "model.num_bessel": 8,
        "model.poly_power": 6,
    }


# Musaelian et al. 2023, Methods: the training of Allegro on the same data.
_ALLEGRO = {
    "training.optimizer": "adam",
    "training.lr": 0.002,
    "training.patience": 100,
    "epochs": 100_000,
}


def tetris_defaults(model: str, given: dict) -> dict:
    """Return the defaults of a run on the Tetris shapes, where they are not those of the classes.

    Args:
      model: name of the model.
      given: settings of the user, by full name.
    """
    if model == "tetris":
        return {}
    own = {
        "nequip": {},
        # Products of products make large logits, and rounding, of large steps.
        "mace": {"model.correlation": 2, "model.parity": True, "training.lr": 0.003},
        # A cube that sees three cubes in a plane cannot tell one hand from the other.
        "allegro": {"model.latent_dim": 64, "data.radius": given.get("model.cutoff", 5.0)},
    }
    return {"model.channels": 16, **own[model]}  # few channels keep the logits small


PRESETS: dict[str, dict[str, dict]] = {
    "nequip": {
        "small": _nequip(layers=3, channels=32, lmax=1, cutoff=5.0),
        "medium": _nequip(layers=4, channels=64, lmax=2, cutoff=5.0),
        "large": _nequip(layers=5, channels=64, lmax=3, cutoff=5.0),
        "3bpa": {**_nequip(layers=5, channels=64, lmax=3, cutoff=4.0), **_3BPA},
        "rmd17": {**_nequip(layers=5, channels=64, lmax=3, cutoff=4.0), **_RMD17},
    },
    "allegro": {
        "small": _allegro(layers=1, channels=32, lmax=2, cutoff=5.0, latent_dim=256),
        "medium": _allegro(layers=2, channels=64, lmax=2, cutoff=5.0, latent_dim=512),
        "large": _allegro(layers=3, channels=128, lmax=3, cutoff=5.0, latent_dim=1024),
        "3bpa": {
            **_allegro(layers=3, channels=128, lmax=3, cutoff=5.0, latent_dim=1024),
            **_3BPA,
            **_ALLEGRO,
            "model.poly_power": 2,
            "model.latent_activation": False,
            "training.energy_weight": 1.0,
        },
        "rmd17": {
            **_allegro(layers=3, channels=128, lmax=3, cutoff=7.0, latent_dim=1024),
            **_RMD17,
            **_ALLEGRO,
        },
    },
    "mace": {
        "small": _mace(channels=128, hidden_lmax=0, radial_layers=3),
        "medium": _mace(channels=128, hidden_lmax=1, radial_layers=3),
        "large": _mace(channels=128, hidden_lmax=2, radial_layers=3),
        "3bpa": {**_mace(channels=256, hidden_lmax=2, radial_layers=2), **_3BPA},
        "rmd17": {**_mace(channels=256, hidden_lmax=2, radial_layers=2), **_RMD17},
    },
}
"""By model and name: full names of settings, and their values."""
