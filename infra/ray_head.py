"""A Ray head node as a process of its own: `python -m infra.ray_head READY_FILE --cpus N --gpus N`; runs until ended.

Its main thread runs `ray.init`: Ray's processes die with the thread that started them. When GCS or raylet ends, the
head does: the run sees that at once, where Ray itself hopes for a minute and then aborts the run's process.
"""

import argparse
import logging
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

LOOK_SECONDS = 0.5
VITAL = ("gcs_server", "raylet")
OBJECT_STORE_BYTES = 100 * 2**20  # reports only: bulk data goes through the artifact store


def main() -> None:
    parser = argparse.ArgumentParser(description="A Ray head node that lives as long as this process.")
    parser.add_argument("ready", type=Path, help="file that gets the cluster's address once it answers")
    parser.add_argument("--cpus", type=int, required=True, help="logical CPUs")
    parser.add_argument("--gpus", type=int, required=True, help="GPUs; logical ones on a host without")
    options = parser.parse_args()

    import ray
    from ray._private import worker

    ray.init(
        num_cpus=options.cpus,
        num_gpus=options.gpus,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        _temp_dir=tempfile.gettempdir(),
        logging_level=logging.WARNING,
        log_to_driver=False,
    )
    unfinished = options.ready.with_suffix(".part")
    unfinished.write_text(ray.get_runtime_context().gcs_address)
    unfinished.rename(options.ready)
    node: Any = worker._global_node
    while signal.sigtimedwait({signal.SIGTERM, signal.SIGINT}, LOOK_SECONDS) is None:
        if dead := [kind for kind, _ in node.dead_processes() if kind in VITAL]:
            print(f"Ray's {', '.join(dead)} ended.", flush=True)
            os._exit(1)  # Ray's own way out waits for what is gone
    ray.shutdown()


if __name__ == "__main__":
    main()
