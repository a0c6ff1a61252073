import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.training.sync import SEQUENCES, rows_to_compare


def test_only_trained_samples_with_a_response_are_compared():
    """What no step took has no log-probs from before training to compare with."""
    assert rows_to_compare(np.array([3, 0, 2, 4]), np.array([True, True, False, True])) == [0, 3]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
@settings(max_examples=60, deadline=None)
def test_rows_are_spread_over_all_that_can_be_compared(samples):
    lengths, trained = (np.array([s[k] for s in samples], dtype) for k, dtype in ((0, int), (1, bool)))
    rows = rows_to_compare(lengths, trained)
    usable = np.flatnonzero((lengths > 0) & trained).tolist()
    assert rows == sorted(set(rows)) and set(rows) <= set(usable)
    assert len(rows) == min(len(usable), SEQUENCES)
    assert not usable or {usable[0], usable[-1]} <= {*rows, usable[-1] if len(rows) == 1 else usable[0]}
