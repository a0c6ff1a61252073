"""Which runs may go."""

from hypothesis import given, settings
from hypothesis import strategies as st

from infra.upkeep.retention import Retention, StoredRun

NOW, DAY = 1_000 * 86_400.0, 86_400.0


def run(run_id: str, age: float, held_by: str | None = None, scenario: str = "tiny") -> StoredRun:
    return StoredRun(
        run_id=run_id, scenario=scenario, last_written=NOW - age * DAY, objects=1, bytes=1, held_by=held_by
    )


def gone(runs: list[StoredRun], days: float, keep: int) -> list[str]:
    return [r.run_id for r in Retention(days=days, keep=keep).expired(runs, NOW)]


def test_old_ones_go_oldest_first_and_the_newest_of_each_scenario_stay():
    runs = [run("a", 50), run("b", 40), run("c", 35), run("d", 1), run("e", 90, scenario="smol")]
    assert gone(runs, days=30, keep=1) == ["a", "b", "c"]
    assert gone(runs, days=30, keep=3) == ["a"]
    assert gone(runs, days=30, keep=0) == ["e", "a", "b", "c"]


def test_a_baseline_and_a_running_one_stay_whatever_their_age():
    assert gone([run("a", 500, "baseline"), run("b", 400, "running"), run("c", 300)], days=30, keep=0) == ["c"]


RUNS = st.lists(
    st.tuples(
        st.floats(0, 500), st.sampled_from([None, None, "baseline", "running"]), st.sampled_from(["tiny", "smol"])
    ),
    max_size=20,
)


@given(RUNS, st.floats(0, 500), st.integers(0, 5))
@settings(deadline=None)
def test_whatever_goes_is_old_not_held_and_leaves_the_newest(given_runs, days, keep):
    runs = [run(str(n), age, held, scenario) for n, (age, held, scenario) in enumerate(given_runs)]
    expired = Retention(days=days, keep=keep).expired(runs, NOW)
    for scenario in ("tiny", "smol"):
        of_it = [r for r in runs if r.scenario == scenario]
        left = [r for r in of_it if r not in expired]
        assert len(left) >= min(keep, len(of_it))
        assert all(r.held_by is None and NOW - r.last_written > days * DAY for r in expired if r.scenario == scenario)
