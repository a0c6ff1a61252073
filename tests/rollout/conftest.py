import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hooks
from hooks.sample import Sample
from infra.hook_loading import Hook
from infra.ledger import LedgerWriter
from infra.records.rollouts import RolloutsRef, read_table, write_table
from infra.records.sources import PROMPTS_SCHEMA, PromptsRef
from infra.run import Run
from infra.scenario.load import load
from tasks.rollout.calls import CallSettings
from tasks.rollout.draw import Slot
from tasks.rollout.generate import GenerationStage
from tasks.rollout.stage import RolloutStage
from tests.rollout.function_engine import BytesTokenizer, FunctionEngine


def slot(index: int = 0, *, group_index: int | None = None, per_group: int = 1, **fields: Any) -> Slot:
    group = index // per_group if group_index is None else group_index
    sample = Sample(group_index=group, index=index, prompt=f"{index}+1=", label=str(index + 1), **fields)
    return Slot(iteration=0, group_index=group, index=index, prompt_id=f"row-{group}", epoch=0, sample=sample)


SETTINGS = CallSettings(seed=7, iteration=0, max_response_tokens=100, temperature=0.9, top_p=1.0, stop_token_ids=(0,))


def prompt_rows(count: int, metadata: Callable[[int], dict[str, Any]] = lambda row: {}) -> list[dict[str, Any]]:
    return [
        {"prompt_id": str(i), "prompt": f"{i}+1=", "label": str(i + 1), "metadata": json.dumps(metadata(i))}
        for i in range(count)
    ]


@pytest.fixture
def ledger(tmp_path: Path):
    with LedgerWriter("r", "rollout", 0, tmp_path / "spool") as writer:
        yield writer


@pytest.fixture
def generation(ledger: LedgerWriter) -> Callable[..., GenerationStage]:
    """A generation stage around a hook function; keywords replace its parts."""

    def stage(function: Callable[..., Any], **parts: Any) -> GenerationStage:
        hook = Hook(f"hooks.{function.__name__}", function)
        given = {
            "settings": SETTINGS,
            "engine": FunctionEngine(),
            "attempts": 2,
            "concurrency": 8,
            "hook_seconds": 60.0,
            **parts,
        }
        return GenerationStage(args=None, hook_of=lambda slot: hook, tokenizer=BytesTokenizer(), ledger=ledger, **given)

    return stage


def events(ledger: LedgerWriter, name: str) -> list[dict[str, Any]]:
    return [e for e in map(json.loads, ledger.path.read_text().splitlines()) if e["event"] == name]


@pytest.fixture
def user_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Write a module of hooks beside the shipped ones; returns the dotted path of its function."""
    folder = tmp_path / "user_hooks"
    folder.mkdir()
    monkeypatch.setattr(hooks, "__path__", [*hooks.__path__, str(folder)])

    def write(name: str, source: str) -> str:
        module = f"written_{tmp_path.name}_{name}".replace("-", "_")
        (folder / f"{module}.py").write_text(source)
        return f"hooks.{module}.{name}"

    return write


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    def run(*overrides: str, run_id: str = "run-1") -> Run:
        scenario = load("tiny", ["rollout.generate=hooks.fanout.compact_generate", *overrides])
        return Run(run_id=run_id, scenario=scenario, store_uri=str(tmp_path / "store"), spool=tmp_path / "spool")

    return run


def publish_prompts(run: Run, rows: list[dict[str, Any]]) -> PromptsRef:
    table = write_table(run.store, "data/{digest}.parquet", pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA))
    return PromptsRef(uri="here", revision="1", table=table, rows=len(rows))


def run_iteration(run: Run, rows: list[dict[str, Any]], engine: FunctionEngine, iteration: int = 0) -> RolloutsRef:
    """The whole stage on a function engine, as the task runs it."""
    folder = run.spool / "no-model"
    stage = RolloutStage(run=run, model_path=folder, tokenizer=BytesTokenizer(), iteration=iteration)
    ref = stage.run_with(stage.slots(publish_prompts(run, rows)), lambda: contextlib.nullcontext(engine))
    run.finish("rollout", iteration, ref.to_dict())
    return ref


def rows_of(run: Run, ref: RolloutsRef) -> list[dict[str, Any]]:
    return read_table(run.store, ref.table).to_pylist()
