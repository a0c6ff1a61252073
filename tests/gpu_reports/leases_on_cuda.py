"""Leases on real GPUs, as a report: `python -m tests.gpu_reports.leases_on_cuda` on a host with two or more.

A GPU that a process without a lease uses is not granted, nor one on which a child of a killed holder is left; a process
under a lease sees its GPUs alone.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from infra.pool.history import in_part, over_committed, overtaken, read_history
from infra.pool.inventory import Gpu, cuda_environment, inventory, usage
from infra.pool.leases import TOKEN, Lease, LeaseFolder
from infra.pool.line import Claim
from infra.pool.process import ProcessIdentity
from infra.settings import Settings

USE = "import torch, time; x = torch.zeros(2**30, device='cuda'); print('uses', flush=True); time.sleep(600)"
SEE = "import torch; print([str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())])"
# Leases all GPUs, starts a child on one of them in a session of its own, says who it is, and waits to be killed.
HOLDER = """
import subprocess, sys, time
from pathlib import Path
from tests.gpu_reports.leases_on_cuda import USE, child_environment, claim, have, take
gpus = have().gpus
lease = take(Path(sys.argv[1]), claim("holder", gpus, len(gpus)), gpus)
env, pipe = child_environment(lease), subprocess.PIPE
child = subprocess.Popen([sys.executable, "-c", USE], env=env, start_new_session=True, stdout=pipe)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def have():
    return inventory(Settings())  # type: ignore[call-arg]


def claim(run: str, gpus: tuple[Gpu, ...], count: int) -> Claim:
    process = str(ProcessIdentity.of(os.getpid()))
    ids = tuple(gpu.id for gpu in gpus)
    return Claim(run=run, flow_run="", pool="gpu", gpus=count, candidates=ids, priority=1, process=process)


def take(folder: Path, wanted: Claim, gpus: tuple[Gpu, ...], said: list[Any] | None = None) -> Lease:
    leases = LeaseFolder(folder, free_mib=1024)
    place = leases.join(wanted)
    while not isinstance(answer := leases.try_take(*place, gpus, usage), Lease):
        if said is not None and (not said or said[-1] != answer.taken):
            said.append(answer.taken)
        time.sleep(0.2)
    return answer


def child_environment(lease: Lease) -> dict[str, str]:
    return {**os.environ, TOKEN: lease.token, **cuda_environment(lease.gpus)}


def main() -> None:
    gpus = have().gpus
    report: dict[str, Any] = {"gpus": [vars(gpu) for gpu in gpus]}
    began = time.monotonic()
    report["usage"] = {gpu: vars(used) for gpu, used in usage().items()}
    report["seconds_of_a_look"] = round(time.monotonic() - began, 2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        leases = LeaseFolder(folder, free_mib=1024)
        last = gpus[-1:]
        foreign = subprocess.Popen(
            [sys.executable, "-c", USE], env={**os.environ, **cuda_environment(last)}, stdout=subprocess.PIPE
        )
        assert foreign.stdout
        foreign.stdout.readline()
        place = leases.join(claim("all", gpus, len(gpus)))
        waiting = leases.try_take(*place, gpus, usage)
        report["beside_a_foreign_process"] = {} if isinstance(waiting, Lease) else vars(waiting)
        leases.leave(*place)
        others = take(folder, claim("others", gpus, len(gpus) - 1), gpus)
        report["granted_beside_it"] = [gpu.index for gpu in others.gpus]
        leases.give_back(others)
        foreign.kill()
        foreign.wait()

        began, said = time.monotonic(), []
        lease = take(folder, claim("last", last, 1), gpus, said)
        report["granted_seconds_after_its_end"] = round(time.monotonic() - began, 2)
        seen = subprocess.run(
            [sys.executable, "-c", SEE], env=child_environment(lease), capture_output=True, text=True, check=True
        )
        report["a_process_sees"], report["it_leased"] = seen.stdout.strip(), lease.gpus[0].id
        leases.give_back(lease)

        holder = subprocess.Popen([sys.executable, "-c", HOLDER, name], stdout=subprocess.PIPE, text=True)
        assert holder.stdout
        child = int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        place = leases.join(claim("next", gpus, len(gpus)))
        waiting = leases.try_take(*place, gpus, usage)
        report["after_kill_9_of_a_holder"] = {} if isinstance(waiting, Lease) else vars(waiting)
        leases.leave(*place)
        os.kill(child, signal.SIGKILL)
        began = time.monotonic()
        leases.give_back(take(folder, claim("next", gpus, len(gpus)), gpus))
        report["granted_seconds_after_its_child_ended"] = round(time.monotonic() - began, 2)
        history = read_history(folder / "history.jsonl")
        report["wrong"] = over_committed(history) + in_part(history) + overtaken(history)
    print(json.dumps(report, indent=1, default=str))


if __name__ == "__main__":
    main()
