"""The probe flow as a deployment of a GPU pool, and runs of it: for benches and to try out a pool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists

from infra.pool.worker import GpuProcessWorker

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

ROOT = Path(__file__).resolve().parents[2]
ENTRYPOINT = "infra/pool/probe_flow.py:gpu_probe"
CODE = [{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}]


async def create_pool(client: PrefectClient, name: str, queues: dict[str, int]) -> None:
    """A work pool of the type `gpu-process` with queues by priority, 1 first; one that is there is kept."""
    template = GpuProcessWorker.get_default_base_job_template()
    try:
        await client.create_work_pool(
            WorkPoolCreate(name=name, type=GpuProcessWorker.type, base_job_template=template), overwrite=False
        )
    except ObjectAlreadyExists:
        return
    for queue, priority in queues.items():
        await client.create_work_queue(name=queue, work_pool_name=name, priority=priority)


async def deploy_probe(client: PrefectClient, name: str, pool: str, queue: str, job_variables: dict[str, Any]) -> UUID:
    """The probe as deployment `gpu-probe/<name>`; returns its id."""
    from infra.pool.probe_flow import gpu_probe

    return await client.create_deployment(
        flow_id=await client.create_flow(gpu_probe),
        name=name,
        entrypoint=ENTRYPOINT,
        pull_steps=CODE,
        work_pool_name=pool,
        work_queue_name=queue,
        job_variables=job_variables,
        parameter_openapi_schema={"type": "object", "properties": {}},
    )
