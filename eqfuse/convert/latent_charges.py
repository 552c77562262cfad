"""The sum of latent charges of the program `les`, which mace and NequIP-LES have in their files."""

import math

from eqfuse.convert.converted import refuse
from eqfuse.convert.records import Record
from eqfuse.models.ewald import LatentEwald


def latent_ewald(les: Record, scale: float = 1.0) -> LatentEwald:
    """Return the sum of a `Les` with the constants of its file, or refuse what it has besides.

    Args:
      les: the module of the file.
      scale: of a charge, e, for a scalar of the network.
    """
    ewald = les.get("ewald")
    options = ("use_atomwise", "use_fixed_atomic_charges", "use_atomic_alpha")
    for name in (*options, "use_epsilon_r_scaling"):
        if les.get(name) or ewald.get(name):
            refuse(f"an option of LES that is not known here ({name})")
    if ewald.name != "Ewald":
        refuse(f"a sum of charges of the kind {ewald.name}")
    return LatentEwald(
        scale=scale,
        sigma=float(ewald.get("sigma")),
        cutoff=2 * math.pi / float(ewald.get("dl")),
        hard=True,
        remove_self=bool(ewald.get("remove_self_interaction")),
        constant=float(ewald.get("norm_factor")),
    )
