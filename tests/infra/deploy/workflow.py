"""The command of the rendered CI workflow, as a runner's shell has it."""

import os
import re
import subprocess
from pathlib import Path

import yaml

from infra.deploy.render import WORKFLOW

EVENT = {"github.event.pull_request.number": "7", "github.event.pull_request.head.sha": "0123abcd"}


def jobs() -> list[str]:
    return list(yaml.safe_load(WORKFLOW.read_text())["jobs"])


def arguments(job: str, checkout: Path) -> list[str]:
    """What the job's last step gives to `fanline`, of pull request 7 in this checkout."""
    line = yaml.safe_load(WORKFLOW.read_text())["jobs"][job]["steps"][-1]["run"]
    filled = re.sub(r"\$\{\{ (.*?) \}\}", lambda found: EVENT[found[1]], line)
    script = 'fanline() { printf "%s\\n" "$@"; }\n' + filled
    env = {**os.environ, "GITHUB_WORKSPACE": str(checkout)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()
