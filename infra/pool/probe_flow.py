"""A flow that leases GPUs for a moment and does nothing else: it tells whether a pool works, and loads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run

from infra.errors import ConfigurationError
from infra.pool.hold import claim_of
from infra.pool.inventory import inventory
from infra.pool.lease import leased
from infra.pool.process import host_name
from infra.settings import settings
from infra.stopwatch import Stopwatch

# Left in a session of its own, as a hook's tool server may be: what ends a run has to find it.
LINGER = "import time; time.sleep({seconds})"


@flow(name="gpu-probe", flow_run_name="{name}", persist_result=False)
def gpu_probe(name: str, gpus: int = 1, seconds: float = 1.0, record: str | None = None, child: float = 0.0) -> str:
    """Lease GPUs, hold them, give them back.

    Args:
        name: the run's name in line and history.
        record: folder that gets `<name>.json` with {gpus, began, ended}, in seconds of this host's monotonic clock.
        child: seconds that a process in a session of its own would stay.
    """
    now = settings()
    have = inventory(now)
    if gpus > len(have.gpus):
        raise ConfigurationError(f"The probe asks for {gpus} GPUs, host {host_name()} has {len(have.gpus)}.")
    timer = Stopwatch()
    with leased(claim_of(name, gpus, have, now, flow_run.get_id() or ""), have, now) as mine, timer("held"):
        began = time.monotonic()
        if child:
            command = [sys.executable, "-c", LINGER.format(seconds=child)]
            subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if record is not None:
            Path(record, f"{name}.started").write_text(str(os.getpid()))
        time.sleep(seconds)
        ended = time.monotonic()
    if record is not None:
        held = {"gpus": [gpu.id for gpu in mine], "began": began, "ended": ended}
        Path(record, f"{name}.json").write_text(json.dumps(held))
    return f"held {len(mine)} GPUs for {timer.seconds['held']:.1f} s"
