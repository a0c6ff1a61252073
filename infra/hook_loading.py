"""From a dotted path to a function, at configuration time: only inside the hook packages, and of the right shape."""

import difflib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from infra.errors import ConfigurationError
from infra.scenario.model import Scenario

Kind = Literal["generate", "reward", "reward_post_process", "sample_filter", "dynamic_filter", "log"]
PARAMETERS: dict[Kind, tuple[str, ...]] = {
    "generate": ("args", "sample", "sampling_params"),
    "reward": ("args", "sample"),
    "reward_post_process": ("args", "samples"),
    "sample_filter": ("args", "samples"),
    "dynamic_filter": ("args", "samples"),
    "log": ("args", "iteration", "samples"),
}
HOOK_PACKAGES = ("hooks",)
PROMPT_HOOKS: dict[str, Kind] = {"generate_function_path": "generate", "custom_rm_path": "reward"}
"""Entries of a prompt's own metadata that name a hook; null is as absent, for a Parquet struct has every entry."""


@dataclass(frozen=True)
class Hook:
    """A loaded hook: the dotted path that people know it by, and the function.

    `takes_samples` is true for the batch form of a reward, whose second parameter is called `samples`.
    """

    path: str
    function: Callable[..., Any]
    takes_samples: bool = False
    takes_evaluation: bool = False


def load_hook(path: str, kind: Kind, allowed: tuple[str, ...] = HOOK_PACKAGES) -> Hook:
    """The function under a dotted path.

    Args:
        allowed: packages whose functions may be hooks; others are not even imported.
    Raises:
        ConfigurationError: the path lies outside `allowed`, does not import (with the nearest name), or is not a
            function of this kind.
    """
    module_name, _, name = path.rpartition(".")
    if not _inside(module_name, allowed):
        raise ConfigurationError(
            f"{kind} hook {path} lies outside the packages that this deployment allows ({', '.join(allowed)}).",
            next_step="Put the function into one of them, or let the deployment allow its package: "
            f"FANLINE_HOOK_PACKAGES={','.join([*allowed, module_name.partition('.')[0]])}.",
            ids=[path],
        )
    module = _import(module_name, path, kind)
    function = vars(module).get(name)
    if not callable(function) or inspect.isclass(function):
        known = [n for n, v in vars(module).items() if inspect.isfunction(v) and _inside(v.__module__, allowed)]
        raise ConfigurationError(
            f"{kind} hook {path}: module {module_name} has no function {name!r}.",
            next_step=_nearest(name, known, module_name),
            ids=[path],
        )
    if not _inside(getattr(inspect.unwrap(function), "__module__", type(function).__module__), allowed):
        raise ConfigurationError(
            f"{kind} hook {path} is only imported there: it lies outside the allowed packages ({', '.join(allowed)}).",
            ids=[path],
        )
    return _checked(path, kind, function)


def load_scenario_hooks(scenario: Scenario, allowed: tuple[str, ...] = HOOK_PACKAGES) -> tuple[Hook, ...]:
    """The generate, reward and reward post-process hooks of a scenario, and those of its other hooks that it names.

    Call it before anything else is started.

    Raises:
        ConfigurationError: see `load_hook`.
    """
    rollout = scenario.rollout
    named: list[tuple[str | None, Kind]] = [
        (rollout.generate, "generate"),
        (rollout.reward, "reward"),
        (scenario.normalization.reward_post_process, "reward_post_process"),
        (rollout.dynamic_filter, "dynamic_filter"),
        (rollout.sample_filter, "sample_filter"),
        (rollout.log, "log"),
    ]
    return tuple(load_hook(path, kind, allowed) for path, kind in named if path is not None)


def load_prompt_hooks(
    metadata: Iterable[Mapping[str, Any]], allowed: tuple[str, ...] = HOOK_PACKAGES
) -> tuple[Hook, ...]:
    """The hooks that prompts name in their own metadata, each once.

    Call it before anything else is started.

    Raises:
        ConfigurationError: see `load_hook`.
    """
    named: set[tuple[str, Kind]] = {
        (str(own[name]), kind) for own in metadata for name, kind in PROMPT_HOOKS.items() if own.get(name)
    }
    return tuple(load_hook(path, kind, allowed) for path, kind in sorted(named))


def source_files(hooks: Iterable[Hook]) -> list[Path]:
    """The Python files of the packages that hooks come from: code that a run depends on."""
    tops = {inspect.unwrap(hook.function).__module__.partition(".")[0] for hook in hooks}
    folders = [Path(str(sys.modules[top].__file__)).parent for top in sorted(tops)]
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def _inside(module: str, allowed: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in allowed)


def _import(module_name: str, path: str, kind: Kind) -> ModuleType:
    """The module, imported package by package so that the first wrong name can be told."""
    top, *parts = module_name.split(".")
    module = _import_one(top, path, kind)
    for part in parts:
        inner = [m.name for m in pkgutil.iter_modules(getattr(module, "__path__", []))]
        if part not in inner:
            raise ConfigurationError(
                f"{kind} hook {path}: there is no module {module.__name__}.{part}.",
                next_step=_nearest(part, inner, module.__name__),
                ids=[path],
            )
        module = _import_one(f"{module.__name__}.{part}", path, kind)
    return module


def _import_one(name: str, path: str, kind: Kind) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as cause:  # a hook's module is user code: whatever it raises is told with its path
        raise ConfigurationError(
            f"{kind} hook {path}: module {name} does not import: {type(cause).__name__}: {cause}.", ids=[path]
        ) from cause


def _nearest(name: str, known: list[str], inside: str) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {inside}.{close[0]}?"
    return f"{inside} has: {', '.join(sorted(known))}." if known else ""


def _checked(path: str, kind: Kind, function: Callable[..., Any]) -> Hook:
    wanted, signature = PARAMETERS[kind], inspect.signature(function)
    asynchronous = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    try:
        signature.bind(*wanted)
    except TypeError as cause:
        raise ConfigurationError(
            f"{kind} hook {path}{signature} can not be called with ({', '.join(wanted)}): {cause}.", ids=[path]
        ) from cause
    parameters = list(signature.parameters)
    takes_samples = kind == "reward" and len(parameters) > 1 and parameters[1] == "samples"
    if kind == "generate" and not asynchronous:
        raise ConfigurationError(f"generate hook {path} has to be an async function.", ids=[path])
    if kind == "reward" and not asynchronous and not takes_samples:
        raise ConfigurationError(
            f"reward hook {path} has to be an async function of one sample, or a function fn(args, samples).",
            ids=[path],
        )
    if kind not in ("generate", "reward") and asynchronous:
        raise ConfigurationError(f"{kind} hook {path} must not be an async function.", ids=[path])
    evaluation = signature.parameters.get("evaluation")
    return Hook(path, function, takes_samples, takes_evaluation=kind == "generate" and evaluation is not None)
