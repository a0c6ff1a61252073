"""The bootstrap against real pip and a real environment, on a small project whose one dependency is a wheel on disk."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from infra.bootstrap import (
    ROOT,
    BootstrapError,
    Environment,
    command_line,
    count_pins,
    detect_device,
    next_step,
    refuse_other_python,
)

BACKEND = """
import zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{wheel_directory}/small-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("small-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\n")
        wheel.writestr("small-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("small-1.dist-info/RECORD", "")
    return "small-1-py3-none-any.whl"
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def write_wheel(folder: Path, name: str) -> None:
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "there = True\n")
        wheel.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        wheel.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.dist-info/RECORD", "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A finished environment of a small checkout, test tools included; the checkout must not move."""
    root = tmp_path_factory.mktemp("checkout")
    locks = root / "infra" / "locks"
    locks.mkdir(parents=True)
    for name in ("runs", "tests_it"):
        write_wheel(root, name)
    (locks / "cpu.txt").write_text(f"--no-index\n--find-links {root}\nruns==1\n")
    (locks / "test.txt").write_text("tests_it==1\n")
    (root / "backend.py").write_text(BACKEND)
    (root / "pyproject.toml").write_text(PROJECT)
    environment = Environment(root, "cpu", tests=True)
    assert not environment.is_ready()
    environment.make()
    return environment


def imports(environment: Environment, name: str) -> bool:
    return (
        subprocess.run([environment.python, "-c", f"import {name}"], capture_output=True, check=False).returncode == 0
    )


def test_a_finished_environment_has_everything_and_is_reused(made: Environment, capsys: pytest.CaptureFixture[str]):
    assert made.is_ready() and imports(made, "runs") and imports(made, "tests_it")
    made.make()
    assert capsys.readouterr().out == ""


def test_a_run_after_the_tests_installs_nothing(made: Environment):
    assert Environment(made.root, "cpu", tests=False).is_ready()


@pytest.mark.parametrize("file", ["infra/locks/cpu.txt", "infra/locks/test.txt", "pyproject.toml"])
def test_a_changed_file_makes_the_environment_stale(made: Environment, file: str):
    path = made.root / file
    before = path.read_text()
    path.write_text(before + "\n# changed\n")
    assert not made.is_ready()
    path.write_text(before)
    assert made.is_ready()


def test_another_python_makes_it_stale(made: Environment, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "version_info", (3, 12, 99))
    assert not made.is_ready()


def test_an_installation_that_was_cut_off_is_finished_by_the_next_call(made: Environment):
    """As kill -9 leaves it: no stamp, one package in place without what pip writes last."""
    site = next(made.folder.glob("lib/python3*/site-packages"))
    made.stamp.unlink()
    (site / "runs.py").unlink()
    (site / "runs-1.dist-info" / "INSTALLER").unlink()
    marker = site / "kept"
    marker.touch()
    assert not made.is_ready()
    made.make()
    assert made.is_ready() and imports(made, "runs") and marker.exists()


def test_an_environment_that_is_broken_is_made_anew(made: Environment):
    made.stamp.unlink()
    for pip in made.folder.glob("lib/python3*/site-packages/pip"):
        shutil.rmtree(pip)
    made.make()
    assert made.is_ready() and imports(made, "runs")


def test_calls_at_once_install_once(made: Environment):
    made.stamp.unlink()
    call = "import sys, pathlib, infra.bootstrap as b; b.Environment(pathlib.Path(sys.argv[1]), 'cpu', True).make()"
    command = [sys.executable, "-c", call, str(made.root)]
    calls = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate()[0] for process in calls]
    assert [process.returncode for process in calls] == [0, 0, 0]
    assert sum("is ready" in output for output in outputs) == 1
    assert made.is_ready()


def test_pips_failure_is_shown_with_the_next_step_and_leaves_no_stamp(made: Environment):
    lock = made.root / "infra" / "locks" / "cpu.txt"
    before = lock.read_text()
    lock.write_text(before + "not_there==7\n")
    with pytest.raises(BootstrapError, match=r"(?s)not_there==7.*Next: Check the network") as failure:
        made.make()
    assert failure.value.exit_code == 3 and not made.stamp.exists()
    lock.write_text(before)
    made.make()
    assert made.is_ready()


def test_the_stamp_names_what_the_environment_follows_from(made: Environment):
    assert set(json.loads(made.stamp.read_text())) == {"python", "root", "cpu.txt", "test.txt", "pyproject.toml"}


def test_a_missing_cpu_wheel_of_torch_is_named_and_never_replaced():
    words = next_step("ERROR: No matching distribution found for torch==2.13.0+cpu\n")
    assert "torch==2.13.0+cpu" in words and "PIP_EXTRA_INDEX_URL" in words and "PIP_FIND_LINKS" in words


def test_a_missing_compiler_is_named():
    assert "C compiler" in next_step("error: command 'gcc' failed: No such file or directory\n")


@pytest.mark.parametrize("version", [(3, 11), (3, 12)])
def test_supported_python(version: tuple[int, int]):
    refuse_other_python(version)


@pytest.mark.parametrize("version", [(2, 7), (3, 9), (3, 10), (3, 13), (4, 0)])
def test_another_python_is_refused_in_words(version: tuple[int, int]):
    with pytest.raises(
        BootstrapError, match=rf"needs Python 3\.11 or 3\.12; this is {version[0]}\.{version[1]}"
    ) as refusal:
        refuse_other_python(version)
    assert refusal.value.exit_code == 2


def test_it_uses_the_standard_library_only():
    code = (ROOT / "infra" / "bootstrap.py").read_text()
    modules = {line.split()[1].split(".")[0] for line in code.splitlines() if line.startswith(("import ", "from "))}
    assert modules <= sys.stdlib_module_names


def test_usage_errors_exit_with_two():
    for arguments in ([], ["walk"], ["install", "--test"]):
        call = subprocess.run(
            [sys.executable, ROOT / "infra/bootstrap.py", *arguments], capture_output=True, check=False
        )
        assert call.returncode == 2


@pytest.mark.parametrize(
    ("command", "rest", "expected"),
    [
        ("run", [], ["/e/bin/fanline", "run", "tiny"]),
        ("run", ["--json"], ["/e/bin/fanline", "run", "tiny", "--json"]),
        ("run", ["smol", "--set", "seed=3"], ["/e/bin/fanline", "run", "smol", "--set", "seed=3"]),
        ("test", ["-k", "ids"], ["/e/bin/python", "-m", "pytest", "-k", "ids"]),
        ("install", ["--tests"], []),
    ],
)
def test_arguments_pass_through(command: str, rest: list[str], expected: list[str]):
    assert command_line(command, rest, Path("/e")) == expected


def test_pins_are_counted(tmp_path: Path):
    lock = tmp_path / "lock.txt"
    lock.write_text('# a==1\n--only-binary :all:\n\nb==2\nc==3 ; python_full_version < "3.11.3"\n')
    assert count_pins([lock]) == 2


def test_the_device_follows_the_driver():
    assert detect_device() == ("cuda" if Path("/dev/nvidiactl").exists() else "cpu")
