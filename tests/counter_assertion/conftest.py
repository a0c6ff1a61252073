import os

import pytest
import torch

from infra.errors import FanlineError
from infra.run import Run
from tasks.counter_assertion.evidence import Evidence
from tasks.counter_assertion.reading import read_evidence
from tests.counter_assertion.plain_loop import PlainLoop, scenario, tiny_qwen2

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
torch.set_num_threads(1)


def evidence_of(loop: PlainLoop, fault: FanlineError | None = None) -> Evidence:
    """What a loop leaves behind, as the checks read it."""
    run, model, prompts = loop.go()
    return read_evidence(run, model, prompts, fault)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return tiny_qwen2(tmp_path_factory.mktemp("model"))


@pytest.fixture
def loop_of(tmp_path, model):
    """A function that builds a loop of a given class for a scenario, in a store of its own."""

    def build(kind: type[PlainLoop] = PlainLoop, run_id: str = "plain-loop-1", **sections) -> PlainLoop:
        run = Run(
            run_id=run_id,
            scenario=scenario(**sections),
            store_uri=str(tmp_path / "store" if run_id == "plain-loop-1" else tmp_path / run_id),
            spool=tmp_path / "spool",
        )
        return kind(run, model)

    return build
