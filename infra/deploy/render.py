"""Files rendered from the scenario matrix: `prefect.yaml` at the top, and the CI workflow template beside this file."""

import sys
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from infra.deploy.deployments import REGRESSION_FLOW, deployments
from infra.deploy.matrix import Matrix, load_matrix

HERE = Path(__file__).parent
PREFECT_YAML = HERE.parent.parent / "prefect.yaml"
WORKFLOW = HERE / "examples" / "github-workflow.yaml"


def render_prefect_yaml(matrix: Matrix) -> str:
    """The text of `prefect.yaml`."""
    return _template("prefect.yaml.j2").render(deployments=deployments(matrix))


def render_workflow(matrix: Matrix) -> str:
    """The text of a GitHub Actions workflow: on a label of a pull request, run that scenario's deployment."""
    labels = {name: entry.ci_label for name, entry in matrix.scenarios.items() if entry.ci_label}
    return _template("github-workflow.yaml.j2").render(labels=labels, ci=matrix.ci, flow=REGRESSION_FLOW)


def rendered(matrix: Matrix) -> dict[Path, str]:
    """Everything that is rendered, by the path where it is checked in."""
    return {PREFECT_YAML: render_prefect_yaml(matrix), WORKFLOW: render_workflow(matrix)}


def outdated(matrix: Matrix) -> dict[Path, str]:
    """What is rendered and not on disk like that."""
    return {p: text for p, text in rendered(matrix).items() if not p.exists() or p.read_text() != text}


def _template(name: str) -> Any:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # YAML, not HTML
    )
    environment.filters["as_yaml"] = _as_yaml
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "ensure_ascii": False}
    return environment.get_template(name)


def _as_yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110).rstrip("\n")


def main() -> None:
    for path, text in outdated(load_matrix()).items():
        path.write_text(text)
        print(f"rendered {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
