"""The oracle shares no code with what it judges: no import of it leads to the trainer, the schedule or the loss."""

import ast
from collections.abc import Iterator
from pathlib import Path

from infra.scenario.training import Training

ROOT = Path(__file__).resolve().parents[2]
ORACLE = ROOT / "tasks" / "counter_assertion"
OWN = ("flows", "tasks", "hooks", "infra")
JUDGED = ("tasks.training.", "tasks.reward_normalization.", "tasks.rollout.", "infra.megatron.", "hooks.")


def imported(path: Path) -> Iterator[str]:
    """Modules of this project that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{path}: a relative import"
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if name.partition(".")[0] in OWN)


def test_nothing_of_what_is_judged_is_imported():
    waiting, seen = [*(ORACLE / "oracle").glob("*.py"), ORACLE / "advantages.py"], set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        for name in imported(path):
            assert not f"{name}.".startswith(JUDGED), f"{path.relative_to(ROOT)} imports {name}"
            files = [ROOT.joinpath(*name.split(".")).with_suffix(".py"), ROOT.joinpath(*name.split("."), "__init__.py")]
            waiting += [file for file in files if file.exists() and file not in seen]
    assert len(seen) > len(list((ORACLE / "oracle").glob("*.py"))) + 1


def test_rules_of_the_trainer_are_not_asked():
    """What `Training` derives of its fields is the trainer's rule; the oracle has one of its own."""
    derived = {name for name, value in vars(Training).items() if isinstance(value, property)}
    assert "whitens" in derived
    for path in (*(ORACLE / "oracle").glob("*.py"), ORACLE / "advantages.py"):
        used = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert not used & derived, path.name
