"""Which faults a drill runs."""

from collections.abc import Sequence

from infra.drill.fault import Fault, fault_of
from infra.drill.scene import SCENES
from infra.drill.table import FAULTS
from infra.errors import ConfigurationError


def chosen(names: Sequence[str], hooks: Sequence[str], packages: tuple[str, ...], *, quick: bool) -> list[Fault]:
    """The faults of the table, or those named, and those of a person's own; own ones alone where nothing is named.

    Args:
        hooks: `my.module:name` of functions marked with `infra.drill.fault.replaces`.
        packages: that they may come from.
        quick: of the table only those that are short enough for every change.
    Raises:
        ConfigurationError: a name that is not in the table, a fault in a scene that there is not, a wrong hook.
    """
    known = {fault.name: fault for fault in FAULTS}
    if unknown := [name for name in names if name not in known]:
        raise ConfigurationError(
            f"There is no fault {', '.join(unknown)}.", next_step=f"There are: {', '.join(known)}.", ids=unknown
        )
    own = [fault_of(path, packages) for path in hooks]
    if lost := [fault for fault in own if fault.scene not in SCENES]:
        raise ConfigurationError(
            f"There is no scene {lost[0].scene}.", next_step=f"There are: {', '.join(SCENES)}.", ids=[lost[0].name]
        )
    table = [known[name] for name in names]
    if not names and not own:
        table = [fault for fault in FAULTS if fault.quick or not quick]
    return [*table, *own]
