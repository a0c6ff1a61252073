"""`fanline bench` at its smallest sizes: every figure is there, as JSON and as a table."""

import io
import json

import pytest
from rich.console import Console

from infra.bench.gpu import targets
from infra.bench_command import BENCHES, rendered, run_bench
from infra.errors import ConfigurationError

SMALL = {"schedule": "200,400", "normalise": "1_000,2_000"}


@pytest.mark.parametrize("name", ["schedule", "normalise"])
def test_a_bench_of_small_sizes(name: str):
    figures = run_bench(name, SMALL[name])
    assert json.loads(json.dumps(figures)) == figures
    assert name != "normalise" or all(row["hook_seconds"] > 0 for row in figures["sizes"])
    assert [row["samples"] for row in figures["sizes"]] == [int(n.replace("_", "")) for n in SMALL[name].split(",")]
    out = io.StringIO()
    Console(file=out, width=160).print(rendered(name, figures))
    assert f"bench {name}" in out.getvalue() and "seconds" in out.getvalue() and "growth" in out.getvalue()


def test_a_bench_of_the_loss():
    figures = run_bench("loss", "32,64")
    assert json.loads(json.dumps(figures)) == figures
    assert [row["tokens"] for row in figures["sizes"]] == [32, 64] * 2
    assert all(row["gradient_difference"] < 0.05 for row in figures["sizes"])
    assert {name: len(grown) for name, grown in figures["growth"].items()} == {"torch.float32": 1, "torch.bfloat16": 1}
    out = io.StringIO()
    Console(file=out, width=160).print(rendered("loss", figures))
    assert "growth torch.float32" in out.getvalue()


def test_nested_figures_are_rows_of_their_own():
    out = io.StringIO()
    figures = {
        "symbolic": {"one_process": 123456.7, "equal": True},
        "sizes": [{"tokens": 4, "plain": {"peak_mib": 1.5}}],
    }
    Console(file=out, width=160).print(rendered("grade", figures))
    for words in ("symbolic one process  123,457", "symbolic equal        True", "plain peak mib  1.5"):
        assert words in out.getvalue()


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("speed", None, f"There are {', '.join(BENCHES)}"),
        ("schedule", "many", "--sizes many"),
        ("schedule", "0", "above 0"),
        ("grade", "100", "two: integer answers, symbolic answers"),
        ("training", "512,700", "multiples of 512 tokens"),
        ("iteration", "12", "a multiple of 8"),
    ],
)
def test_wrong_usage_is_said_in_words(name: str, sizes: str | None, words: str):
    with pytest.raises(ConfigurationError, match=words):
        run_bench(name, sizes)


@pytest.mark.engine
@pytest.mark.trainer
def test_a_bench_of_all_that_a_gpu_decides():
    """Its parts are the benches training, rollout and iteration; here with what they give on a CPU."""
    figures = run_bench("gpu", "4")
    assert "failed" not in figures
    rows = figures["training"]["sizes"]
    assert [(row["lengths"], row["form"]) for row in rows] == [
        (lengths, form) for lengths in ("uniform", "mixed") for form in ("trainer", "plain")
    ]
    assert all(row["tokens"] == 1024 and row["tokens_a_second"] > 0 for row in rows)
    for mode in ("sizes", "deterministic"):
        (row,) = figures[mode]
        assert row["samples"] == 4 and row["hooks_tokens"] > 0 and row["bare_tokens"] > 0
    (exact,) = figures["deterministic"]
    assert exact["hooks_tokens"] == exact["bare_tokens"]
    assert figures["own_engine"]["sizes"][0]["tokens_a_second"] > 0
    loop = figures["iteration"]
    assert len(loop["iterations"]) == 4 and all(row["gradient_norm"] > 0 for row in loop["iterations"])
    assert loop["push"]["bytes"] == figures["own_engine"]["weights_of_its_own_process"]["bytes"]
    assert "targets" not in figures  # which are those of an H200
    assert [name for name, target in targets(figures).items() if target["figure"] is None] == [
        "training peak GiB",
        "hand-over there and back, seconds",
    ]
    assert json.loads(json.dumps(figures)) == figures


def test_targets_of_parts_that_failed_are_not_met():
    assert [(t["figure"], t["met"]) for t in targets({"failed": {"training": "…"}}).values()] == [(None, False)] * 6
