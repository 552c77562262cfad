"""A process for `eqfuse.bench.worker.Worker` that does as it is told."""

import os
import time


def serve(connection, environment):
    """Answer with a variable of the environment, die, hang, or say that it is spoiled."""
    os.environ.update(environment)
    while True:
        try:
            what, _ = connection.recv()
        except EOFError:
            return
        if what == "die":
            os._exit(3)
        if what == "flags":
            found = {"flags": os.environ.get("XLA_FLAGS", ""), "process": os.getpid()}
            connection.send(("result", found))
            connection.send(("end", False))
            continue
        if what == "hang":
            connection.send(("result", {"before": "it hangs"}))
            time.sleep(60)
        connection.send(("result", {"answer": os.environ["WHAT"], "process": os.getpid()}))
        connection.send(("end", what == "spoil"))
