"""What a server has to hold, as plain documents: pools, queues, the store's block, deployments and automations."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from prefect.workers.base import BaseWorker

from infra.deploy.automations import automations
from infra.deploy.deployments import ENTRYPOINTS, versioned
from infra.deploy.matrix import Matrix, Pool
from infra.deploy.render import render_prefect_yaml
from infra.errors import ConfigurationError

Kind = Literal["storage block", "work pool", "work queue", "deployment", "automation"]
STORE_BLOCK = "fanline-store"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One object of the server. `fields` are all that `fanline deploy` decides about it; other fields are left alone.

    `name` is what people call it: `gpu-4`, `gpu-4/nightly`, `fanout-nightly/nightly`.
    """

    kind: Kind
    name: str
    fields: Mapping[str, Any]


def wanted(matrix: Matrix, store_uri: str, notify: str | None) -> list[Wanted]:
    """Everything, in an order in which it can be created.

    Args:
        store_uri: the artifact store, absolute.
        notify: id of the notification block that automations send to; None leaves their actions as they are.
    """
    slug, base = store_block(store_uri)
    document = yaml.safe_load(render_prefect_yaml(matrix))
    return [
        Wanted(kind="storage block", name=f"{slug}/{STORE_BLOCK}", fields={"basepath": base}),
        *(Wanted(kind="work pool", name=name, fields=_pool(pool, slug)) for name, pool in matrix.pools.items()),
        *_queues(matrix),
        *(_deployment(one, document["pull"]) for one in document["deployments"]),
        *(
            Wanted(kind="automation", name=name, fields=fields)
            for name, fields in automations(matrix.nightly, notify).items()
        ),
    ]


def store_block(uri: str) -> tuple[str, str]:
    """Prefect's kind of storage block for a store, and its base path."""
    scheme, separator, path = uri.partition("://")
    if not separator or scheme == "file":
        return "local-file-system", str(Path(path if separator else uri))
    return "remote-file-system", uri


def worker_template(worker_type: str) -> dict[str, Any]:
    """The base job template of a worker type, as its class has it.

    Raises:
        ConfigurationError: no such worker is installed.
    """
    worker = BaseWorker.get_worker_class_from_type(worker_type)
    if worker is None:
        raise ConfigurationError(
            f"No worker of type {worker_type!r} is installed here.",
            next_step="Install fanline anew (`python3 infra/bootstrap.py install`): its entry points name its workers.",
            ids=[worker_type],
        )
    return worker.get_default_base_job_template()


def _pool(pool: Pool, slug: str) -> dict[str, Any]:
    template = worker_template(pool.type)
    environment = template["variables"]["properties"]["env"]
    # One place says where the store is: the block. The worker reads it when it starts a run.
    environment["default"] = {"FANLINE_STORE": f"{{{{ prefect.blocks.{slug}.{STORE_BLOCK}.basepath }}}}"}
    version = versioned({"type": pool.type, "template": template})["version"]
    return {
        "type": pool.type,
        "description": f"{pool.description}; template {version}",
        "concurrency_limit": pool.concurrency,
        "base_job_template": template,
    }


def _queues(matrix: Matrix) -> list[Wanted]:
    return [
        Wanted(
            kind="work queue",
            name=f"{pool_name}/{name}",
            fields={
                "priority": queue.priority,
                "concurrency_limit": queue.concurrency,
                "description": queue.description,
            },
        )
        for pool_name, pool in matrix.pools.items()
        for name, queue in sorted(pool.queues.items(), key=lambda item: item[1].priority)
    ]


def _deployment(one: dict[str, Any], pull: list[Any]) -> Wanted:
    from prefect.flows import load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema

    flow_name = next(name for name, entrypoint in ENTRYPOINTS.items() if entrypoint == one["entrypoint"])
    schema = parameter_schema(load_flow_from_entrypoint(one["entrypoint"], use_placeholder_flow=False))
    fields = {
        "version": one["version"],
        "description": one["description"],
        "entrypoint": one["entrypoint"],
        "tags": sorted(one["tags"]),
        "parameters": one["parameters"],
        "enforce_parameter_schema": one["enforce_parameter_schema"],
        "parameter_openapi_schema": schema.model_dump(mode="json", exclude_unset=True),
        "work_pool_name": one["work_pool"]["name"],
        "work_queue_name": one["work_pool"]["work_queue_name"],
        "job_variables": one["work_pool"]["job_variables"],
        "schedules": one["schedules"],
        "pull_steps": pull,
    }
    return Wanted(kind="deployment", name=f"{flow_name}/{one['name']}", fields=fields)
