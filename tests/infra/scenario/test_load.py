from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic.fields import FieldInfo

from infra.errors import ConfigurationError
from infra.scenario.load import load, names
from infra.scenario.model import Scenario
from infra.scenario.section import Section
from tests.cases_of import case

GREEDY = case("budget-6")["input"]


@pytest.mark.parametrize("name", names())
def test_every_scenario_of_the_catalog_is_valid_and_named_after_its_file(name: str):
    assert load(name).name == name and load(name).description


def test_overrides_reach_nested_fields_and_sources():
    scenario = load("tiny", ["rollout.prompts=8", "model=/models/mine", "data.allowed_bad_rows=0.1", "seed=11"])
    assert (scenario.rollout.prompts, scenario.model.uri, scenario.seed) == (8, "/models/mine", 11)
    assert scenario.data.uri.startswith("embedded://") and scenario.data.allowed_bad_rows == 0.1


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.promts=8", "rollout.promts: there is no such field. Did you mean 'prompts'?"),
        (f"rollout.temperature={GREEDY['temperature']}", "rollout.temperature"),
        ("training.global_batch_size=256", "16 rollouts an iteration, 256 a step"),
        ("training.micro_batch_size=1", "exactly one of max_tokens_per_gpu and micro_batch_size"),
        ("rollout.generate=nodots", "rollout.generate"),
        ("seed", "expected section.field=value"),
    ],
)
def test_wrong_values_are_said_in_words(override: str, words: str):
    with pytest.raises(ConfigurationError) as refused:
        load("tiny", [override])
    assert words in str(refused.value) and refused.value.exit_code == 2


def test_an_unknown_scenario_names_the_nearest():
    with pytest.raises(ConfigurationError, match="Did you mean 'tiny'"):
        load("tinny")


def test_a_scenario_file_of_ones_own(tmp_path: Path):
    text = (Path(__file__).parents[3] / "infra/scenario/catalog/tiny.yaml").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("name: tiny", "name: mine"))
    assert load(str(path)).name == "mine"
    path.write_text("name: [")
    with pytest.raises(ConfigurationError, match="not YAML"):
        load(str(path))


def test_every_field_says_what_it_is():
    def fields(model: type[Section]) -> Iterator[tuple[str, FieldInfo]]:
        for name, field in model.model_fields.items():
            yield f"{model.__name__}.{name}", field
            for inner in (field.annotation, *get_args(field.annotation)):
                if isinstance(inner, type) and issubclass(inner, Section):
                    yield from fields(inner)

    of_all = dict(fields(Scenario))
    assert {"Training.kl_estimator", "Evaluation.data", "Data.uri", "Scenario.checks"} <= of_all.keys()
    assert [name for name, field in of_all.items() if not field.description] == []
