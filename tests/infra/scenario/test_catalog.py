"""Every scenario that comes with fanline loads, and its sources and hooks are spelled right."""

import pytest

from infra.scenario.load import load, names
from infra.scenario.model import Scenario
from infra.sources.uri import parse


def test_the_catalog():
    assert {"tiny", "smol", "compact-short", "fanout-signal"} <= set(names())


@pytest.mark.parametrize("name", names())
def test_a_catalog_scenario_is_valid_and_named_after_its_file(name):
    scenario = load(name)
    assert scenario.name == name
    assert scenario.description
    assert parse(scenario.model.uri).scheme in ("embedded", "hf", "pypi")
    assert Scenario.model_validate(scenario.model_dump(mode="json")) == scenario


@pytest.mark.parametrize("name", ["tiny", "smol", "fanout-signal"])
def test_a_scenario_with_signal_has_the_shape_that_sees_faults(name):
    scenario = load(name)
    assert not scenario.plumbing_only
    assert scenario.rollout.rollouts_per_prompt >= 2
    assert scenario.rollouts_per_iteration >= 2 * scenario.training.global_batch_size
    assert scenario.checks.expected_fan_outs == (1, 2, 3)


def test_compact_short_runs_without_a_network_too():
    embedded = load("compact-short", ["model=embedded://tiny", "data=embedded://arithmetic?rows=8"])
    assert embedded.plumbing_only
    assert (embedded.rollout.iterations, embedded.rollout.prompts, embedded.rollout.rollouts_per_prompt) == (3, 8, 1)
    assert embedded.training.global_batch_size == 4
    assert not embedded.data.apply_chat_template
