from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from infra.deploy.difference import change_of, differences
from infra.deploy.wanted import Wanted, store_block

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
POOL = Wanted(kind="work pool", name="gpu-4", fields={"concurrency_limit": 4, "template": {"a": {"b": 1}, "c": [1]}})


@settings(deadline=None, max_examples=60)
@given(JSON, JSON)
def test_there_is_a_difference_exactly_where_values_differ(before: Any, after: Any):
    assert bool(differences("x", before, after)) == (before != after)


def test_what_is_not_there_is_created():
    change = change_of(POOL, None)
    assert change is not None and change.action == "create" and change.fields == ()


def test_a_change_names_the_innermost_field():
    current = {"concurrency_limit": 4, "template": {"a": {"b": 2}, "c": [1]}, "unknown": 7}
    change = change_of(POOL, current)
    assert change is not None and [f.in_words() for f in change.fields] == ["template.a.b: 2 -> 1"]
    assert change_of(POOL, POOL.fields) is None


def test_a_field_that_comes_or_goes_is_told():
    said = [f.in_words() for f in differences("x", {"old": 1}, {"new": 2})]
    assert said == ["x.new: (absent) -> 2", "x.old: 1 -> (absent)"]


def test_a_store_has_its_kind_of_block():
    assert store_block("/data/store") == ("local-file-system", "/data/store")
    assert store_block("file:///data/store") == ("local-file-system", "/data/store")
    assert store_block("s3://bucket/prefix") == ("remote-file-system", "s3://bucket/prefix")
