"""Exit codes and words of the command line, as a person's shell sees them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def fanline(
    *arguments: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    env = {**inherited, **(environment or {})}
    command = [str(Path(sys.executable).parent / "fanline"), *arguments]
    return subprocess.run(command, cwd=cwd, env=env, text=True, capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "words"),
    [
        (["run", "tinny"], {}, 2, "Did you mean 'tiny'"),
        (["run", "tiny", "--set", "seed.x=1"], {}, 2, "seed is a value"),
        (["run", "tiny", "--set", "model=[1"], {}, 2, "not a YAML value"),
        (
            ["show", "x", "--store", "s3://nowhere/x"],
            {"AWS_EC2_METADATA_DISABLED": "true"},
            3,
            "has no credentials for the artifact store",
        ),
        (["run", "tiny"], {"PREFECT_API_URL": "http://127.0.0.1:9/api"}, 3, "does not answer"),
        (["run", "tiny"], {"FANLINE_HOME": "/proc/nope"}, 3, "/proc/nope"),
        (["doctor"], {"HF_HUB_OFFLINE": "maybe"}, 2, "HF_HUB_OFFLINE"),
    ],
)
def test_what_is_wrong_is_said_and_is_never_a_regression(
    arguments: list[str], environment: dict[str, str], code: int, words: str
):
    ended = fanline(*arguments, environment=environment)
    assert ended.returncode == code and words in ended.stderr, ended.stderr


def test_an_error_is_a_json_document_too():
    ended = fanline("run", "tinny", "--json")
    assert ended.returncode == 2 and json.loads(ended.stdout)["exit_code"] == 2


def test_modules_of_the_current_folder_do_not_hide_ours(tmp_path: Path):
    (tmp_path / "tasks.py").write_text("raise RuntimeError('not ours')\n")
    ended = fanline("show", "x", "--store", str(tmp_path), cwd=tmp_path)
    assert ended.returncode == 2 and "No run of" in ended.stderr, ended.stderr
