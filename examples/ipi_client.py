"""Let a network compute the forces of i-PI, or of another program that speaks its protocol.

    python examples/ipi_client.py RUN START.xyz --unix NAME        # <ffsocket mode='unix'>
    python examples/ipi_client.py RUN START.xyz --host HOST --port 31415

i-PI is started first. START.xyz has the atoms in the order of i-PI's own file. i-PI sends positions
and a cell in each step and gets energy, forces and, for periodic atoms, the virial.
"""

import argparse

import ase.io
from ase.calculators.socketio import SocketClient

import eqfuse


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="folder of the run, or file of its network")
    parser.add_argument("start", help="file of the atoms, which ASE reads")
    parser.add_argument("--unix", help="name of the UNIX socket")
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=31415)
    options = parser.parse_args()
    atoms = ase.io.read(options.start)
    atoms.calc = eqfuse.Calculator(options.run)
    if options.unix:
        client = SocketClient(unixsocket=options.unix)
    else:
        client = SocketClient(host=options.host, port=options.port)
    client.run(atoms, use_stress=bool(atoms.pbc.any()))


if __name__ == "__main__":
    main()
