"""Make the environment and start: the one file of fanline that runs before anything is installed.

It uses the standard library only and shares no code with the rest, which can not be imported yet. It also has to parse
on Python versions that it refuses, so that it can say so.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ((3, 11), (3, 12))
USAGE = """\
python3 infra/bootstrap.py run [SCENARIO] [option ...]   install, then `fanline run` (default scenario: tiny)
python3 infra/bootstrap.py test [pytest option ...]      install with the test tools, then the tests
python3 infra/bootstrap.py install [--tests]             install only"""


class BootstrapError(Exception):
    """What stopped the bootstrap, what to do next, and the exit code (2: usage or configuration, 3: this machine)."""

    def __init__(self, message: str, next_step: str, exit_code: int = 3):
        super().__init__(f"{message}\n  Next: {next_step}")
        self.exit_code = exit_code


class Environment:
    """The virtual environment `.venv` of one checkout.

    Args:
        root: the checkout.
        device: "cpu" or "cuda": which lock it is made from.
        tests: whether the test tools belong to it.

    Once made with the test tools it keeps them: `run` after `test` installs nothing.
    """

    def __init__(self, root: Path, device: str, tests: bool):
        self.root, self.folder, self.state = root, root / ".venv", root / ".fanline"
        self.python = self.folder / "bin" / "python"
        self.stamp, self.log = self.folder / "fanline-stamp.json", self.state / "bootstrap.log"
        locks = root / "infra" / "locks"
        self.locks = [locks / f"{device}.txt"] + ([locks / "test.txt"] if tests else [])

    def wanted(self) -> dict[str, str]:
        """Digest of everything that the environment follows from, by name."""
        files = [*self.locks, self.root / "pyproject.toml"]
        digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        return {"python": ".".join(map(str, sys.version_info[:3])), "root": str(self.root), **digests}

    def recorded(self) -> dict[str, str]:
        """What the last finished installation wrote; empty if none finished."""
        return json.loads(self.stamp.read_text()) if self.stamp.exists() else {}

    def is_ready(self) -> bool:
        return self.python.exists() and self.wanted().items() <= self.recorded().items()

    def make(self) -> None:
        """Install what is missing, once, however many processes ask at the same time."""
        if self.is_ready():
            return
        self.state.mkdir(exist_ok=True)
        with _locked(self.state / "bootstrap.lock"):
            if not self.is_ready():
                self._install()

    def _install(self) -> None:
        began = time.monotonic()
        wanted, recorded = self.wanted(), self.recorded()
        # Without the stamp, an installation that is cut off from here on is seen by the next call.
        self.stamp.unlink(missing_ok=True)
        self.log.unlink(missing_ok=True)
        if not self._can_be_continued(recorded):
            self._create()
            recorded = {}
        _forget_half_installed_packages(self.folder)
        self._pip(["--no-deps", *(f"--requirement={lock}" for lock in self.locks)], count=count_pins(self.locks))
        self._pip(["--no-deps", "--no-build-isolation", f"--editable={self.root}"], count=1)
        test_tools = {name: digest for name, digest in recorded.items() if name == "test.txt"}
        _write_atomically(self.stamp, json.dumps({**test_tools, **wanted}, indent=1))
        print(f"The environment {self.folder} is ready ({time.monotonic() - began:.0f} s).", flush=True)

    def _can_be_continued(self, recorded: dict[str, str]) -> bool:
        """Whether there is a working environment, of this Python's minor version, that was made at this place."""
        if not self.python.exists() or recorded.get("root", str(self.root)) != str(self.root):
            return False
        probe = "import sys, pip; print(*sys.version_info[:2])"
        answer = subprocess.run([self.python, "-c", probe], capture_output=True, text=True, check=False)
        return answer.stdout.split() == [str(part) for part in sys.version_info[:2]]

    def _create(self) -> None:
        version = "{}.{}".format(*sys.version_info[:2])
        print(f"Making {self.folder} with Python {version}.", flush=True)
        # Called from inside the environment that is made anew, its own interpreter is about to go.
        base = Path(sys.base_prefix) / "bin" / f"python{version}"
        if self.folder.exists():
            shutil.rmtree(self.folder)
        made = subprocess.run([base, "-m", "venv", self.folder], capture_output=True, text=True, check=False)
        if made.returncode:
            raise BootstrapError(
                f"`{base} -m venv` failed:\n{made.stdout}{made.stderr}".rstrip(),
                f"Install Python's venv module (on Debian and Ubuntu: apt-get install python{version}-venv).",
            )

    def _pip(self, arguments: Sequence[str], count: int) -> None:
        """Run pip with a line of progress; its whole output goes to a log.

        Raises:
            BootstrapError: pip failed; shows the end of its output and what to do.
        """
        options = ["--disable-pip-version-check", "--progress-bar=off"]
        command = [str(self.python), "-m", "pip", "install", *options, *arguments]
        seen, tail = 0, []
        pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        with self.log.open("a") as log, pip:
            for line in pip.stdout or ():
                log.write(line)
                if not line.startswith("WARNING:"):
                    tail = [*tail[-14:], line]
                if line.startswith(("Collecting ", "Processing ", "Requirement already satisfied")):
                    seen += 1
                    _show_progress(seen, count)
        if pip.returncode:
            raise BootstrapError(f"pip failed:\n{''.join(tail)}  (all of it: {self.log})", next_step("".join(tail)))


def count_pins(locks: Sequence[Path]) -> int:
    """Number of packages that the locks pin."""
    return sum(bool(re.match(r"[\w.-]+==", line)) for lock in locks for line in lock.read_text().splitlines())


def _show_progress(seen: int, count: int) -> None:
    if count == 1:
        return
    if sys.stdout.isatty():
        print(f"\rFetching packages: {seen} of {count}", end="\n" if seen == count else "", flush=True)
    elif seen % 50 == 0 or seen == count:
        print(f"Fetching packages: {seen} of {count}", flush=True)
    if seen == count:
        print("Installing them (a minute or two).", flush=True)


def next_step(output: str) -> str:
    """What a person can do about a failure of pip."""
    missing = re.search(r"No matching distribution found for (torch==\S+\+cpu)", output)
    if missing:
        return (
            f"The wheel {missing[1]} for Python {'{}.{}'.format(*sys.version_info[:2])} is not offered by pip's index. "
            "Set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels, or PIP_FIND_LINKS to a folder that holds this "
            "wheel, and call again. (A CUDA build is never taken instead.)"
        )
    if "error: command '" in output:
        return (
            "A package is built from source here. Install a C compiler and Python's headers (on Debian and Ubuntu: "
            "apt-get install gcc python3-dev) and call again."
        )
    if "No space left" in output:
        return "Free about 5 GB of disk space and call again: it continues where it stopped."
    return (
        "Check the network and pip's index settings (`pip config list`) and call again: it continues where it stopped."
    )


def _forget_half_installed_packages(folder: Path) -> None:
    """Pip takes a package whose installation was cut off for installed; its INSTALLER, written last, is missing."""
    for info in folder.glob("lib/python3*/site-packages/*.dist-info"):
        if not (info / "INSTALLER").exists():
            shutil.rmtree(info)


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file; the kernel frees it however this process ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another call is installing; waiting for it.", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def refuse_other_python(version: tuple[int, int]) -> None:
    """Raises BootstrapError unless `version` (major, minor) is one that the locks are made for."""
    if version in SUPPORTED:
        return
    found = [name for name in ("python3.11", "python3.12") if shutil.which(name)]
    mend = (
        f"Call `{found[0]} infra/bootstrap.py ...`."
        if found
        else "Install Python 3.11 or 3.12 and call it by that name."
    )
    raise BootstrapError(
        f"fanline needs Python 3.11 or 3.12; this is {version[0]}.{version[1]} ({sys.executable}).", mend, 2
    )


def detect_device() -> str:
    """ "cuda" where NVIDIA's driver is loaded, else "cpu"."""
    return "cuda" if Path("/dev/nvidiactl").exists() else "cpu"


def command_line(command: str, rest: Sequence[str], folder: Path) -> list[str]:
    """The command to become once the environment is there; empty after `install`."""
    if command == "run":
        scenario = [] if rest and not rest[0].startswith("-") else ["tiny"]
        return [str(folder / "bin" / "fanline"), "run", *scenario, *rest]
    return [str(folder / "bin" / "python"), "-m", "pytest", *rest] if command == "test" else []


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="infra/bootstrap.py", usage=USAGE, allow_abbrev=False)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default=None, help="which lock to install; default: by the driver"
    )
    parser.add_argument("command", choices=("run", "test", "install"))
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.command == "install" and options.rest not in ([], ["--tests"]):
        parser.error(f"install takes only --tests, not {' '.join(options.rest)}")
    tests = options.command == "test" or options.rest == ["--tests"]
    refuse_other_python(sys.version_info[:2])
    environment = Environment(ROOT, options.device or detect_device(), tests)
    environment.make()
    command = command_line(options.command, options.rest, environment.folder)
    if options.command == "test":
        os.chdir(ROOT)
    if command:
        # Threads that spin while they wait take the cores from each other: set before any library starts them.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.execv(command[0], command)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BootstrapError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
