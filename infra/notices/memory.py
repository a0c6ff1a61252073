"""Which causes were told, as immutable objects of the artifact store."""

from infra.notices.causes import FOLDER, Cause, cause_key, era, green_key, has_causes
from infra.store import AlreadyPublished, ArtifactStore


def remember(store: ArtifactStore, cause: Cause, run_id: str) -> bool:
    """Whether this run is the first of its cause since the scenario was last green; of two at once, one is.

    The same run asked again gets the same answer.

    Raises:
        StoreUnavailable: the memory can not be read or written.
    """
    number = era(store.keys(f"{FOLDER}/{cause.scenario}"), cause.scenario)
    content = {
        "run": run_id,
        "scenario": cause.scenario,
        "verdict": cause.verdict,
        "checks": list(cause.checks),
        "reason": cause.reason,
    }
    try:
        store.publish_json(cause_key(cause.scenario, number, cause.fingerprint), content)
    except AlreadyPublished:
        return False
    return True


def forget(store: ArtifactStore, scenario: str, run_id: str) -> None:
    """A green run: whatever turns red from here on is told again.

    Raises:
        StoreUnavailable: the memory can not be read or written.
    """
    keys = store.keys(f"{FOLDER}/{scenario}")
    number = era(keys, scenario)
    if has_causes(keys, scenario, number):
        try:
            store.publish_json(green_key(scenario, number), {"run": run_id})
        except AlreadyPublished:
            return  # another green run was faster
