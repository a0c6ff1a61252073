"""The locks: parsed as pip parses them, closed, and without CUDA on the CPU."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from infra.bootstrap import ROOT

LOCKS = ROOT / "infra" / "locks"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CUDA = re.compile(r"nvidia|cuda|cutlass|flashinfer|sglang-kernel|deep-?gemm|torchaudio|^nvshmem")
OWN = {"flows", "tasks", "hooks", "infra", "tests", "sgl_kernel"}


def lines(lock: str) -> list[str]:
    return [line for line in (LOCKS / lock).read_text().splitlines() if line and not line.startswith("#")]


def pins(lock: str) -> dict[str, Requirement]:
    """By canonical name; every line that is no option is an exact pin."""
    found = [Requirement(line) for line in lines(lock) if not line.startswith("--")]
    assert all([spec.operator for spec in pin.specifier] == ["=="] for pin in found)
    assert len({canonicalize_name(pin.name) for pin in found}) == len(found), "a package is pinned twice"
    return {canonicalize_name(pin.name): pin for pin in found}


def version(pin: Requirement) -> str:
    return next(iter(pin.specifier)).version


@pytest.mark.parametrize("lock", ["cpu.txt", "cuda.txt", "test.txt"])
def test_every_lock_pins_exactly_and_says_what_it_is(lock: str):
    assert pins(lock)
    assert (LOCKS / lock).read_text().startswith("# ")


def test_nothing_of_cuda_on_the_cpu():
    names = pins("cpu.txt") | pins("test.txt")
    assert [name for name in names if CUDA.search(name)] == []
    assert version(pins("cpu.txt")["torch"]).endswith("+cpu")


def test_the_cuda_lock_has_sglangs_own_kernels():
    assert {"sglang-kernel", "torch-memory-saver"} <= set(pins("cuda.txt"))
    assert "+cpu" not in version(pins("cuda.txt")["torch"])


@pytest.mark.parametrize("lock", ["cpu.txt", "cuda.txt"])
def test_every_dependency_of_the_project_is_pinned_in_its_range(lock: str):
    pinned = pins(lock)
    for dependency in map(Requirement, PROJECT["project"]["dependencies"]):
        pin = pinned[canonicalize_name(dependency.name)]
        assert dependency.specifier.contains(version(pin)), f"{pin} is outside {dependency}"
    backend = Requirement(PROJECT["build-system"]["requires"][0])
    assert backend.specifier.contains(version(pinned["setuptools"]))


def test_every_test_tool_is_pinned_in_its_range():
    pinned = pins("cpu.txt") | pins("test.txt")
    for dependency in map(Requirement, PROJECT["dependency-groups"]["test"]):
        assert dependency.specifier.contains(version(pinned[canonicalize_name(dependency.name)]))


@pytest.mark.parametrize("lock", ["cpu.txt", "cuda.txt"])
def test_the_test_tools_pin_nothing_that_a_run_pins(lock: str):
    assert set(pins(lock)) & set(pins("test.txt")) == set()


def test_the_cpu_lock_is_closed_under_declared_dependencies():
    """But for SGLang and what stands under its heading: their lists would bring CUDA and what is never imported."""
    first_part = (LOCKS / "cpu.txt").read_text().split("# SGLang 0.5.20 on the CPU")[0]
    closed = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", first_part, re.M)} - {
        "sglang",
        "async-timeout",
    }
    pinned = pins("cpu.txt")
    for name in sorted(closed):
        for needed in map(Requirement, metadata.requires(name) or []):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert canonicalize_name(needed.name) in pinned, f"{name} needs {needed}"


def imported() -> Iterator[tuple[str, Path]]:
    for folder in ("flows", "tasks", "hooks", "infra"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    yield from ((alias.name.split(".")[0], path) for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                    yield node.module.split(".")[0], path


def test_whatever_the_code_imports_is_a_declared_dependency():
    declared = {canonicalize_name(Requirement(line).name) for line in PROJECT["project"]["dependencies"]}
    owners = metadata.packages_distributions()
    for module, path in imported():
        if module not in sys.stdlib_module_names | OWN:
            assert declared & {canonicalize_name(name) for name in owners.get(module, [])}, f"{path} imports {module}"
