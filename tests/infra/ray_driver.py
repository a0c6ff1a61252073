"""A driver of a Ray cluster as a program of its own, for tests that end it or its cluster the hard way.

`python -m tests.infra.ray_driver LOG wait` waits to be killed; `… lose` ends its own head and says what it sees;
`… ask` says that it was asked to end, by a handler that it had before it joined.
"""

import signal
import sys
import time
from pathlib import Path

import ray

from infra.errors import TrainerUnavailable
from infra.ray_cluster import RayCluster, signals_heard


@ray.remote(num_cpus=1, num_gpus=1)
class Sleeper:
    @ray.method
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class AskedToEnd(BaseException):
    """SIGTERM, as Prefect's engine hears of it."""


def asked_to_end(*_: object) -> None:
    raise AskedToEnd


def main(log_path: Path, task: str) -> None:
    if task == "ask":
        signal.signal(signal.SIGTERM, asked_to_end)
    with RayCluster("driver", ranks=2, gpus=2, log_path=log_path) as cluster:
        cluster.connect()
        actors = [Sleeper.remote() for _ in range(2)]
        ray.get([actor.sleep.remote(0) for actor in actors])
        answers = [actor.sleep.remote(3600) for actor in actors]
        try:
            with signals_heard():
                print("ready", flush=True)
                if task == "lose":
                    assert cluster.head is not None
                    cluster.head.terminate()
                while True:
                    cluster.check()
                    ray.wait(answers, timeout=0.2)
        except TrainerUnavailable as lost:
            print(lost, flush=True)
        except AskedToEnd:
            print("asked to end", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
