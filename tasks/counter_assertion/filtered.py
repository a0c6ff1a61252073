"""What filters took out of an iteration: every removed sample and dropped group has its line, and the line is true."""

from collections import defaultdict

from tasks.counter_assertion.evidence import Evidence, IterationEvidence
from tasks.counter_assertion.findings import Findings

MIXED_REWARDS = "hooks.filters.mixed_rewards"


def compare_filtered(evidence: Evidence, found: Findings) -> None:
    """Findings about `removed` and `dropped` lines of the ledger against the stored samples."""
    for it in evidence.iterations:
        _removed(it, found)
        _whole_groups(it, found)
        if evidence.scenario.rollout.dynamic_filter == MIXED_REWARDS:
            _equal_rewards(it, found)


def _removed(it: IterationEvidence, found: Findings) -> None:
    lines = {(e["rollout_id"], e["sibling"]) for e in it.events("removed") if e["reason"]}
    marked = {s.key for s in it.rollouts if s.remove_sample}
    for rollout, sibling in sorted(marked - lines):
        found.add(f"sample (rollout {rollout}, sibling {sibling}) is removed and no reason is given", rollout)
    for rollout, sibling in sorted(lines - marked):
        found.add(f"sample (rollout {rollout}, sibling {sibling}) has a reason to be removed and is not", rollout)


def _whole_groups(it: IterationEvidence, found: Findings) -> None:
    """A dynamic filter takes a prompt group as a whole."""
    stored = defaultdict(set)
    for s in it.rollouts:
        stored[s.group_index].add(s.rollout_id)
    dropped = {e["group_index"] for e in it.events("dropped") if e.get("filter") == "dynamic"}
    for group in sorted(dropped & stored.keys()):
        left = sorted(stored[group])
        found.add(f"prompt group {group} was dropped by the dynamic filter and its rollouts {left} are stored", group)


def _equal_rewards(it: IterationEvidence, found: Findings) -> None:
    """The shipped filter drops exactly the groups whose rewards, as they were graded, do not differ."""
    group_of = {e["rollout_id"]: e["group_index"] for e in it.events("generated") if "group_index" in e}
    rewards = defaultdict(set)
    for e in it.events("graded"):
        if e["rollout_id"] in group_of:
            rewards[group_of[e["rollout_id"]]].add(e["reward"])
    dropped = {e["group_index"] for e in it.events("dropped") if e.get("filter") == "dynamic"}
    for group, values in sorted(rewards.items()):
        if (len(values) > 1) is (group in dropped):
            what = "was dropped" if group in dropped else "was kept"
            found.add(f"prompt group {group} {what} by {MIXED_REWARDS} with the rewards {sorted(values)}", group)
