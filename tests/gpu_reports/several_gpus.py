"""What several GPUs of one host have to show; on a CPU the same with gloo ranks and logical GPUs.

python -m tests.gpu_reports.several_gpus GPUS PART… [--folder=FOLDER]; parts: layouts, shape, kill, scaling; JSON
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file

from infra.bench import iteration
from infra.bench.random_model import write_model

BOUND = 1e-5  # of float32 gradients between layouts, relative, for each tensor
QUICK = ("checks.determinism=false", "checks.invariance=false")
CUDA = torch.cuda.is_available()
KIND = "cuda" if CUDA else "cpu"


def parts_of(does: dict[str, Callable[[Path], dict[str, Any]]], arguments: list[str]) -> None:
    """Runs the parts that the arguments name, and prints what each of them showed; one that fails stops no other."""
    folders = [a.partition("=")[2] for a in arguments if a.startswith("--folder=")]
    found: dict[str, Any] = {"device": KIND}
    with tempfile.TemporaryDirectory() as own:
        for part in (a for a in arguments if not a.startswith("--")):
            started = time.monotonic()
            try:
                found[part] = does[part](Path(folders[0] if folders else own) / part)
            except Exception as error:  # the other parts are still worth their device time
                found[part] = {"error": f"{type(error).__name__}: {error}"}
            found[part]["seconds"] = round(time.monotonic() - started, 1)
            print(json.dumps({part: found[part]}), file=sys.stderr, flush=True)
    print(json.dumps(found))


def layouts(gpus: int, folder: Path) -> dict[str, Any]:
    """`fanout-signal` in float32 by three layouts: the same tokens, and equal unclipped gradients of the first step."""
    half = gpus // 2
    asked = {
        f"dp {gpus}": [f"training.data_parallel={gpus}"],
        f"dp {half} tp 2": [f"training.data_parallel={half}", "training.tensor_parallel=2"],
        f"dp {half} cp 2": [f"training.data_parallel={half}", "training.context_parallel=2"],
    }
    common = ["dtype=float32", "rollout.iterations=1", "training.publish_gradients=first", *memory(), *QUICK]
    runs = {name: run("fanout-signal", [*common, *own], folder / name.replace(" ", "-")) for name, own in asked.items()}
    rows = {name: {k: v for k, v in made.items() if k != "store"} for name, made in runs.items()}
    first = gradient(next(iter(runs.values()))["store"])
    for name, made in runs.items():
        rows[name]["largest relative gradient error"] = distance(gradient(made["store"]), first)
    equal = all(row["largest relative gradient error"] < BOUND for row in rows.values())
    return {"bound": BOUND, "equal": equal, "rows": rows}


def shape(gpus: int, folder: Path) -> dict[str, Any]:
    """`compact-short` on Qwen2.5-0.5B's shape with random weights (small on a CPU): engine and rank on each GPU."""
    model = random_model(folder / "model")
    own = [
        f"model={model}",
        "data=embedded://arithmetic?rows=64",
        "data.apply_chat_template=false",
        f"training.data_parallel={gpus}",
        f"engine.servers={gpus}",
        *memory(),
    ]
    made = run("compact-short", own, folder)
    syncs = [json.loads(p.read_text()) for p in sorted(folder.glob("store/runs/*/iterations/*/sync.json"))]
    made["syncs"] = [{k: s[k] for k in ("bytes", "seconds", "max_log_prob_error", "hand_overs")} for s in syncs]
    return {k: v for k, v in made.items() if k != "store"}


def kill(gpus: int, folder: Path) -> dict[str, Any]:
    """One engine is killed while iteration 1 is generated: the run recovers, and no GPU is held after it."""
    own = [f"training.data_parallel={gpus}", f"engine.servers={gpus}", *memory(), *QUICK]
    process, killed = start("tiny", own, folder), None
    while process.poll() is None and killed is None:
        if list(folder.glob("spool/**/*.rollout.1.*")):
            killed = kill_one_engine(process.pid)
        time.sleep(0.02)
    made = ended(process, folder)
    made.pop("store")
    return {**made, "killed": killed, "left running": left_running(), "gpus held": held()}


def scaling(gpus: int, folder: Path) -> dict[str, Any]:
    """One iteration with as many rollouts for each GPU, on 1, 2 and 4 GPUs: tokens a second of either side."""
    rows = []
    for count in (n for n in (1, 2, 4) if n <= gpus):
        rollouts = (iteration.ON_CUDA if CUDA else iteration.ON_CPU) * count
        with iteration.gated(folder / str(count), KIND, rollouts, count) as measured:
            made = measured.measure()
        last = made["iterations"][1:]
        rows.append(
            {
                "gpus": count,
                "rollout tokens a second": round(
                    sum(r["generated_tokens"] for r in last) / sum(r["generation"] for r in last)
                ),
                "training tokens a second": round(
                    sum(r["trained_tokens"] for r in last) / sum(r["steps"] for r in last)
                ),
                **made,
            }
        )
    return {"rows": rows}


def random_model(folder: Path) -> Path:
    """Qwen2.5-0.5B's shape, small on a CPU; made by a process of its own, so that this one holds no GPU."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        return other.submit(write_model, folder, KIND, tokenizer=True).result()[0]


def memory() -> list[str]:
    return [f"device={KIND}", *(["engine.memory_fraction=0.8", "engine.max_total_tokens=60000"] if CUDA else [])]


def start(scenario: str, overrides: list[str], folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "infra.cli", "run", scenario, "--json", "--store", str(folder / "store")]
    env = {**os.environ, "FANLINE_SPOOL": str(folder / "spool"), "FANLINE_HOME": str(folder / "home")}
    with (folder / "out.json").open("wb") as out, (folder / "err").open("wb") as err:
        return subprocess.Popen([*command, *(f"--set={o}" for o in overrides)], env=env, stdout=out, stderr=err)


def ended(process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    code = process.wait()
    summary: dict[str, Any]
    try:
        summary = json.loads((folder / "out.json").read_text())
    except ValueError:
        summary = {"error": (folder / "err").read_text(errors="replace")[-1500:]}
    checks = {c["name"]: c["status"] for c in summary.get("checks", [])}
    red = {c["name"]: c["reason"] for c in summary.get("checks", []) if c["status"] in ("fail", "infra")}
    return {
        "exit code": code,
        "verdict": summary.get("verdict"),
        "error": summary.get("error"),
        "weights": summary.get("weights_digest"),
        "checks": checks,
        "red": red,
        "seconds by stage": summary.get("seconds_by_stage"),
        "store": folder / "store",
    }


def run(scenario: str, overrides: list[str], folder: Path) -> dict[str, Any]:
    return ended(start(scenario, overrides, folder), folder)


def gradient(store: Path) -> dict[str, torch.Tensor]:
    (record,) = store.glob("runs/*/iterations/0000/training.json")
    return load_file(store / json.loads(record.read_text())["steps"][0]["gradient"]["key"])


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[k].double() - b[k].double()).norm() / b[k].double().norm().clamp_min(1e-30)) for k in a)


def kill_one_engine(root: int) -> str | None:
    """kill -9 of the process of one server that serves; its name."""
    for process in psutil.Process(root).children(recursive=True):
        if "infra.sglang.launch" in " ".join(process.cmdline()) and "supervisor.py" not in " ".join(process.cmdline()):
            os.kill(process.pid, signal.SIGKILL)
            return f"process {process.pid} of SGLang"
    return None


def held() -> list[str]:
    if not CUDA:
        return []
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def left_running() -> list[int]:
    """Processes of engines and ranks that are still there."""
    commands = {p.pid: " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])}
    return [pid for pid, command in commands.items() if "sglang" in command or "ray::" in command]


if __name__ == "__main__":
    here, gpus = (layouts, shape, kill, scaling), int(sys.argv[1])
    parts_of({part.__name__: partial(part, gpus) for part in here}, sys.argv[2:])
