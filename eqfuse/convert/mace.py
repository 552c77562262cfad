"""Networks of mace (`mace-torch`), read without torch: nothing in their files is executed."""

from eqfuse.convert.converted import Converted
from eqfuse.convert.mace_description import described
from eqfuse.convert.mace_parameters import parameters
from eqfuse.convert.pickled import read_module


def read_mace(path, head: str | None = None) -> Converted:
    """Read a file that mace has written by `torch.save(model, path)`.

    Args:
      path: of the file.
      head: the name of one of several heads.
    Raises:
      ConvertError: a file that cannot be read, or a network that eqfuse's MACE cannot represent.
    """
    network = read_module(path)
    description = described(network, head)
    count = len(description.references)
    return Converted(
        program="mace",
        model="mace",
        fields=description.fields,
        params=parameters(network, description),
        scale=(description.scale,) * count,
        shift=(description.shift,) * count,
        references=description.references,
        dtype=description.dtype,
        repulsion=description.repulsion,
        choice=head,
    )
