"""How many GPUs a scenario needs, and whether its deployment and this host have them."""

from __future__ import annotations

from infra.errors import ConfigurationError
from infra.pool.inventory import DRIVER, Inventory, inventory
from infra.scenario.model import Scenario
from infra.settings import Settings


def leased_inventory(scenario: Scenario, now: Settings) -> Inventory | None:
    """The GPUs that a run of this scenario has to lease from; None where it needs no lease.

    It needs none on a host without GPUs that presents no logical ones, nor for a CPU scenario on a host with GPUs, nor
    where engine and ranks run on the nodes of a Ray cluster, which keeps account of its GPUs itself.
    """
    if now.ray_address is not None and now.engine_labels:
        return None
    if now.logical_gpus is not None:
        return inventory(now)
    if scenario.device == "cpu" or not DRIVER.exists():
        return None
    from infra.megatron.device import resolve  # imports torch, which hosts without a driver are spared

    return inventory(now) if resolve(scenario) == "cuda" else None


def refuse_too_many_gpus(scenario: Scenario, now: Settings) -> None:
    """Refuse a scenario that could wait for ever.

    Raises:
        ConfigurationError: it needs more GPUs than its deployment asks for, or than this host has; gives both numbers.
    """
    needed = scenario.training.world_size
    if now.gpus is not None and needed > now.gpus:
        raise ConfigurationError(
            f"Scenario {scenario.name} needs {needed} GPUs, one for each trainer rank, and its deployment asks for "
            f"{now.gpus}.",
            next_step="Raise `gpus` of the deployment, or lower the parallel sizes of the scenario.",
            ids=[scenario.name],
        )
    if have := leased_inventory(scenario, now):
        refuse_more_than(have, needed, f"Scenario {scenario.name}", scenario.name)


def refuse_more_than(have: Inventory, needed: int, what: str, name: str) -> None:
    """Refuse what would wait for GPUs that this host does not have.

    Args:
        what: the scenario, run or command in words; `name` is its id.
    Raises:
        ConfigurationError: gives both numbers.
    """
    if needed > len(have.gpus):
        raise ConfigurationError(
            f"{what} needs {needed} GPUs, one for each trainer rank, and host {have.host} has "
            f"{len(have.gpus)}{' logical ones' if have.emulated else ''}.",
            next_step="Run it where there are enough, or lower the parallel sizes (training.data_parallel and others).",
            ids=[name],
        )
