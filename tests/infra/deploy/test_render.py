"""What is checked in is what the matrix says; and the rendered files are what their readers accept."""

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from infra.deploy.deployments import ENTRYPOINTS, versioned
from infra.deploy.matrix import load_matrix
from infra.deploy.render import HERE, PREFECT_YAML, WORKFLOW, rendered
from infra.scenario.load import load
from infra.scenario.model import Scenario

SNAPSHOT = Path(__file__).parent / "parameter_schemas.json"


@pytest.mark.parametrize("path", [PREFECT_YAML, WORKFLOW], ids=lambda path: path.name)
def test_the_checked_in_file_is_what_the_matrix_renders(path: Path):
    assert path.read_text() == rendered(load_matrix())[path], "run `python -m infra.deploy.render`"


def test_each_scenario_is_deployed_as_its_catalog_has_it():
    deployments = {one["name"]: one for one in yaml.safe_load(PREFECT_YAML.read_text())["deployments"]}
    for name in load_matrix().scenarios:
        assert Scenario.model_validate(deployments[name]["parameters"]["scenario"]) == load(name)
        assert deployments[name]["enforce_parameter_schema"] is True
    nightly = deployments["nightly"]
    assert nightly["parameters"]["scenarios"] == load_matrix().every_night
    assert nightly["work_pool"]["name"] != deployments["tiny"]["work_pool"]["name"]


def test_a_version_changes_with_what_it_is_the_version_of():
    assert versioned({"a": 1}) == versioned({"a": 1}) != versioned({"a": 2})
    versions = [one["version"] for one in yaml.safe_load(PREFECT_YAML.read_text())["deployments"]]
    assert len(set(versions)) == len(versions)


def test_the_workflow_is_one_that_github_accepts():
    schema = vendored_schema("github-workflows")
    workflow = yaml.safe_load(WORKFLOW.read_text())
    workflow["on"] = workflow.pop(True)  # YAML 1.1, which PyYAML reads, takes `on` for a truth value
    jsonschema.validate(workflow, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**workflow, "jobs": {"tiny": {"runs-on": 7}}}, schema)


def test_the_workflow_has_a_job_a_label():
    labels = {name: entry.ci_label for name, entry in load_matrix().scenarios.items() if entry.ci_label}
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    assert set(jobs) == set(labels)
    for name, label in labels.items():
        assert f"'{label}'" in jobs[name]["if"]
        assert f"fanline trigger fanout-regression/{name} " in jobs[name]["steps"][-1]["run"]


def test_the_compose_example_has_a_worker_a_pool_and_what_they_need():
    document = yaml.safe_load((HERE / "examples" / "compose.yaml").read_text())
    jsonschema.validate(document, vendored_schema("compose-spec"))
    services = document["services"]
    assert {"postgres", "s3", "prefect-server"} <= set(services)
    assert services["deploy"]["command"].endswith("/fanline deploy")
    for name, pool in load_matrix().pools.items():
        worker = services[f"worker-{name}"]
        assert worker["command"].endswith(f"prefect worker start --pool {name} --type {pool.type}")
        assert "deploy" in worker["depends_on"]
        assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "FANLINE_STORE"} <= set(worker["environment"])


def test_the_compose_example_has_no_secret_in_it():
    services = yaml.safe_load((HERE / "examples" / "compose.yaml").read_text())["services"]
    given = [pair for service in services.values() for pair in service.get("environment", {}).items()]
    secrets = [(name, value) for name, value in given if re.search("PASSWORD|KEY|CONNECTION_URL", name)]
    assert len(secrets) > 5 and all("${" in value for _, value in secrets)


@pytest.mark.parametrize("flow", sorted(ENTRYPOINTS))
def test_the_form_of_a_flow_is_the_one_that_was_looked_at(flow: str):
    """A changed form changes what people and scripts may send."""
    accept = "look at the difference, then accept it: python -m tests.infra.deploy.test_render"
    assert schemas()[flow] == json.loads(SNAPSHOT.read_text())[flow], accept


def schemas() -> dict[str, Any]:
    from prefect.flows import load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema

    def form(entrypoint: str) -> Any:
        flow = load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)
        return parameter_schema(flow).model_dump(mode="json", exclude_unset=True)

    return {name: form(entrypoint) for name, entrypoint in ENTRYPOINTS.items()}


def vendored_schema(name: str) -> dict[str, Any]:
    """A JSON schema that the package check-jsonschema carries."""
    folder = resources.files("check_jsonschema.builtin_schemas.vendor")
    return json.loads((folder / f"{name}.json").read_text())


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(schemas(), indent=1, sort_keys=True) + "\n")
