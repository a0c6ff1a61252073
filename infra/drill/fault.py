"""A fault: product functions that are replaced while it is on. Nothing but the drill turns one on.

A replacement is a function `original -> faulty`, named by its dotted path, so that it can be installed in the trainer's
processes too. No scenario field, parameter, environment variable or store object leads here.
"""

import contextlib
import functools
import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from infra.errors import ConfigurationError

Replacement = Callable[[Any], Any]
MARK = "__fanline_fault__"
IN_THE_RANKS = ("infra.megatron.", "megatron.", "tasks.training.loss.")  # imported there; here only if loaded anyway
PRODUCT = ("flows", "tasks", "hooks", "infra")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of the table, or one of a person's own.

    Args:
        name: what the drill calls it.
        what: what goes wrong, in words.
        scene: name of the smallest scene that can show it.
        must: checks of which at least one has to be red.
        may: checks that may be red besides, as consequences.
        replaces: dotted path of a product function to the dotted path of its replacement.
        quick: part of the drill that is short enough for every change.
        each_tensor: comes once for each tensor of the model; every form has to be caught.
    """

    name: str
    what: str
    scene: str
    must: tuple[str, ...]
    may: tuple[str, ...] = ()
    replaces: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False
    each_tensor: bool = False

    def here(self) -> dict[str, str]:
        """The replacements of this process: of what the trainer's ranks import, what is loaded here too."""
        return {t: by for t, by in self.replaces.items() if not t.startswith(IN_THE_RANKS) or _is_loaded(t)}


def in_a_rank(replaces: Mapping[str, str]) -> dict[str, str]:
    """The replacements of a trainer's process, asked there: of tasks, hooks and flows, what is loaded."""
    return {t: by for t, by in replaces.items() if t.startswith((*IN_THE_RANKS, "infra.")) or _is_loaded(t)}


def replaces(target: str, *, scene: str = "base", must: tuple[str, ...] = ()) -> Callable[[Replacement], Replacement]:
    """Make a fault of one's own out of a function `original -> faulty`, for `fanline drill --hook my.module:name`.

    Args:
        target: dotted path of the product function that is replaced.
        scene: where the fault is tried, see `fanline drill --list`.
        must: checks of which one has to be red; without any the fault is caught by whichever is.

    Example:
        @replaces("tasks.training.plan.sample_weights")
        def twice_the_loss(original):
            def faulty(*args, **kwargs):
                weights, rollouts = original(*args, **kwargs)
                return 2 * weights, rollouts
            return faulty
    """

    def mark(replacement: Replacement) -> Replacement:
        path = f"{replacement.__module__}.{replacement.__name__}"
        what = (replacement.__doc__ or replacement.__name__).strip().splitlines()[0]
        fault = Fault(name=replacement.__name__, what=what, scene=scene, must=must, replaces={target: path})
        setattr(replacement, MARK, fault)
        return replacement

    return mark


def fault_of(path: str, packages: tuple[str, ...]) -> Fault:
    """The fault that a function marked with `replaces` stands for.

    Args:
        path: `my.module:name` or `my.module.name`.
        packages: that hooks may come from.
    Raises:
        ConfigurationError: the path lies outside the packages, leads to nothing, or to a function without the mark.
    """
    dotted = path.replace(":", ".", 1)
    if dotted.partition(".")[0] not in {package.partition(".")[0] for package in packages}:
        raise ConfigurationError(
            f"{path} lies outside the packages that this deployment allows ({', '.join(packages)}).",
            next_step=f"Let it allow yours: FANLINE_HOOK_PACKAGES={','.join([*packages, dotted.partition('.')[0]])}.",
            ids=[path],
        )
    found = vars(resolved(dotted)).get(MARK)
    if found is None:
        raise ConfigurationError(
            f"{path} does not say what it replaces.",
            next_step='Mark it: @replaces("tasks.training.plan.sample_weights") from infra.drill.fault.',
            ids=[path],
        )
    return found


@contextlib.contextmanager
def installed(replaces: Mapping[str, str]) -> Iterator[Counter[str]]:
    """Put replacements in place in this process, and take them out again.

    `from x import f` gives a module a name of its own for the function: it is replaced under every name that a loaded
    module of the product has for it, and taken out of modules that are imported meanwhile too. What holds it otherwise
    (a registry, a cache, a default) keeps the original.

    Yields:
        How often each replacement was called so far, by target; one that is not a function (a class) is not counted.

    Raises:
        ConfigurationError: a dotted path leads to nothing; names it.
    """
    calls: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        for target, by in replaces.items():
            owner, name = _owner_of(target)
            original, replacement = vars(owner)[name], resolved(by)
            faulty = _counted(replacement(original), target, calls)
            stack.callback(_take_out, faulty, original, _holders(faulty))
            for holder, held in [(owner, name), *_holders(original, but=replacement.__module__)]:
                stack.callback(setattr, holder, held, original)
                setattr(holder, held, faulty)
        yield calls


def _counted(faulty: Any, target: str, calls: Counter[str]) -> Any:
    if not inspect.isfunction(faulty):
        return faulty
    calls[target] = 0

    @functools.wraps(faulty)
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[target] += 1
        return faulty(*args, **kwargs)

    @functools.wraps(faulty)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return await counted(*args, **kwargs)

    return awaited if inspect.iscoroutinefunction(faulty) else counted


def _holders(value: Any, but: str = "") -> list[tuple[ModuleType, str]]:
    """The names that loaded modules of the product have for a function or class.

    Args:
        but: a module that keeps the original.
    """
    loaded = [m for path, m in list(sys.modules.items()) if path.partition(".")[0] in PRODUCT and path != but]
    if not callable(value):
        return []
    return [(m, name) for m in loaded for name, held in list(vars(m).items()) if held is value]


def _take_out(faulty: Any, original: Any, before: list[tuple[ModuleType, str]]) -> None:
    """Of modules that were imported after it had been put in, which are all but those that had it `before`."""
    for holder, name in _holders(faulty):
        if (holder, name) not in before:
            setattr(holder, name, original)


def resolved(path: str) -> Any:
    """What a dotted path leads to, through modules and classes."""
    owner, name = _owner_of(path)
    return vars(owner)[name]


def _is_loaded(path: str) -> bool:
    """Whether the module of a dotted path is imported already."""
    parts = path.split(".")
    known = next((k for k in range(len(parts) - 1, 0, -1) if ".".join(parts[:k]) in sys.modules), 0)
    return known > 0 and parts[known] in vars(sys.modules[".".join(parts[:known])])


def _owner_of(path: str) -> tuple[Any, str]:
    """The module or class that holds the last name of a dotted path."""
    *parts, name = path.split(".")
    owner, inner = _longest_module(parts)
    while owner is not None and inner:
        owner = vars(owner).get(inner.pop(0))
    if owner is None or name not in vars(owner):
        raise ConfigurationError(
            f"There is no {path}.", next_step="Give the dotted path of a function, through its module.", ids=[path]
        )
    return owner, name


def _longest_module(parts: list[str]) -> tuple[Any, list[str]]:
    """The module that a dotted path goes through, and the names inside it; None where not even the first is one."""
    for cut in range(len(parts), 0, -1):
        module = ".".join(parts[:cut])
        try:
            return importlib.import_module(module), parts[cut:]
        except ModuleNotFoundError as missing:
            if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
                raise
    return None, []
