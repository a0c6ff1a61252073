"""More runs than GPUs, three workers, three queues: the bench of fifty, with six."""

import json

import pytest

from infra.bench.pool import SIZES
from infra.bench_command import run_bench

RUNS = 6


@pytest.mark.prefect
@pytest.mark.usefixtures("prefect")
def test_no_gpu_is_given_twice_no_run_is_lost_and_urgent_runs_come_first():
    figures = run_bench("pool", str(RUNS))
    assert json.loads(json.dumps(figures)) == figures
    assert figures["ended"] == {"Completed": RUNS} and figures["lost"] == []
    assert figures["over_committed"] == figures["in_part"] == []
    assert figures["overtaken_in_line"] == figures["overtaken_in_queue"] == []
    assert figures["taken_by_gpus"] == {str(gpus): RUNS // len(SIZES) for gpus in SIZES}
