"""A process for `eqfuse.bench.worker.Worker` that does as it is told."""

import os
import time


def serve(connection, environment):
    """Answer with a variable of the environment, die, hang, or meet an error of the device."""
    os.environ.update(environment)
    while True:
        try:
            what, _ = connection.recv()
        except EOFError:
            return
        if what == "die":
            os._exit(3)
        if what == "hang":
            connection.send({"before": "it hangs"})
            time.sleep(60)
        result = {"answer": os.environ["WHAT"], "process": os.getpid()}
        if what == "spoil":
            result["error"] = "XlaRuntimeError: INTERNAL: illegal memory access"
        connection.send(result)
        connection.send(None)
