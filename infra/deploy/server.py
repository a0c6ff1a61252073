"""The objects of a Prefect server, read and written as the same plain documents that are wanted."""

from collections.abc import Callable, Mapping
from itertools import chain, repeat
from typing import Any

from prefect.blocks.core import Block
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import (
    BlockDocumentUpdate,
    DeploymentScheduleCreate,
    WorkPoolCreate,
    WorkPoolUpdate,
)
from prefect.client.schemas.filters import DeploymentFilter, FlowFilter
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.schedules import CronSchedule
from prefect.events.actions import DoNothing
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound

from infra.deploy.deployments import ENTRYPOINTS, TAG
from infra.deploy.wanted import Kind, Wanted
from infra.errors import ConfigurationError

Document = Mapping[str, Any]


class Server:
    """One Prefect server, through its client API.

    Args:
        client: a connected client; the current Prefect settings name the same server.
    """

    def __init__(self, client: SyncPrefectClient):
        self.client = client
        self._read: dict[Kind, Callable[[str], Document | None]] = {
            "storage block": self._read_block,
            "work pool": self._read_pool,
            "work queue": self._read_queue,
            "deployment": self._read_deployment,
            "automation": self._read_automation,
        }
        self._write: dict[Kind, Callable[[str, Document], object]] = {
            "storage block": self._write_block,
            "work pool": self._write_pool,
            "work queue": self._write_queue,
            "deployment": self._write_deployment,
            "automation": self._write_automation,
        }

    def read(self, wanted: Wanted) -> Document | None:
        """The object as it is; None where it is not there."""
        try:
            return self._read[wanted.kind](wanted.name)
        except ObjectNotFound:
            return None

    def write(self, wanted: Wanted) -> None:
        """Create the object, or set its fields."""
        self._write[wanted.kind](wanted.name, wanted.fields)

    def deployments(self) -> list[str]:
        """The deployments of fanline's flows that have its tag, as `flow/name`: those that a matrix has, or had."""
        tagged = DeploymentFilter.model_validate({"tags": {"all_": [TAG]}})
        return [
            f"{flow}/{found.name}"
            for flow in ENTRYPOINTS
            for found in self.client.read_deployments(
                flow_filter=FlowFilter.model_validate({"name": {"any_": [flow]}}), deployment_filter=tagged
            )
        ]

    def remove_deployment(self, name: str) -> None:
        """It goes with its schedules; its runs stay."""
        self.client.delete_deployment(self.client.read_deployment_by_name(name).id)

    def _read_block(self, name: str) -> Document:
        slug, block = name.split("/")
        document = self.client.read_block_document_by_name(block, slug)
        return {"basepath": document.data.get("basepath")}

    def _write_block(self, name: str, fields: Document) -> None:
        """What else the block holds (the credentials of an S3 block's `settings`) stays as a person has set it."""
        slug, block = name.split("/")
        try:
            there = self.client.read_block_document_by_name(block, slug, include_secrets=False)
        except ObjectNotFound:
            Block.get_block_class_from_key(slug)(**fields).save(block)
        else:
            self.client.update_block_document(
                there.id, BlockDocumentUpdate(data=dict(fields), merge_existing_data=True)
            )

    def _read_pool(self, name: str) -> Document:
        pool = self.client.read_work_pool(name)
        return {
            "type": pool.type,
            "description": pool.description,
            "concurrency_limit": pool.concurrency_limit,
            "base_job_template": pool.base_job_template,
        }

    def _write_pool(self, name: str, fields: Document) -> None:
        try:
            there = self.client.read_work_pool(name)
        except ObjectNotFound:
            self.client.create_work_pool(WorkPoolCreate(name=name, **fields))
            return
        if there.type != fields["type"]:
            raise ConfigurationError(
                f"Work pool {name} is of type {there.type} and can not become one of type {fields['type']}.",
                next_step=f"`prefect work-pool delete {name}`, then deploy again. Its queued runs go with it.",
                ids=[name],
            )
        update = {key: value for key, value in fields.items() if key != "type"}
        self.client.update_work_pool(name, WorkPoolUpdate(**update))

    def _read_queue(self, name: str) -> Document:
        pool, queue = name.split("/")
        found = self.client.read_work_queue_by_name(queue, pool)
        return {
            "priority": found.priority,
            "concurrency_limit": found.concurrency_limit,
            "description": found.description,
        }

    def _write_queue(self, name: str, fields: Document) -> None:
        pool, queue = name.split("/")
        try:
            there = self.client.read_work_queue_by_name(queue, pool)
        except ObjectNotFound:
            there = self.client.create_work_queue(queue, work_pool_name=pool)
        path = {"work_pool_name": pool, "name": there.name}
        self.client.request("PATCH", "/work_pools/{work_pool_name}/queues/{name}", path_params=path, json=dict(fields))

    def _read_deployment(self, name: str) -> Document:
        found = self.client.read_deployment_by_name(name)
        document = found.model_dump(mode="json")
        document["tags"] = sorted(document["tags"])
        document["pull_steps"] = document["pull_steps"] or []
        document["schedules"] = [_schedule(schedule) for schedule in found.schedules]
        return document

    def _write_deployment(self, name: str, fields: Document) -> None:
        """A schedule that a person has paused stays so; the server makes them anew with each write."""
        flow_name, deployment = name.split("/")
        crons = [CronSchedule(cron=s["cron"], timezone=s["timezone"]) for s in fields["schedules"]]
        try:
            there = [schedule.active for schedule in self.client.read_deployment_by_name(name).schedules]
        except ObjectNotFound:
            there = []
        active = chain(there, repeat(True))
        schedules = [
            DeploymentScheduleCreate(schedule=cron, active=is_active)
            for cron, is_active in zip(crons, active, strict=False)
        ]
        flow_id = self.client.create_flow_from_name(flow_name)
        self.client.create_deployment(flow_id=flow_id, name=deployment, **{**fields, "schedules": schedules})

    def _read_automation(self, name: str) -> Document | None:
        found = self.client.read_automations_by_name(name)
        if not found:
            return None
        document = found[0].model_dump(mode="json")
        trigger = document["trigger"]
        for key in ("after", "expect", "for_each"):
            trigger[key] = sorted(trigger[key])
        document["trigger"] = {key: value for key, value in trigger.items() if key != "id"}
        return document

    def _write_automation(self, name: str, fields: Document) -> None:
        found = self.client.read_automations_by_name(name)
        actions = found[0].actions if found else [DoNothing()]
        automation = AutomationCore.model_validate({"actions": actions, **fields, "name": name})
        if found:
            self.client.update_automation(found[0].id, automation)
        else:
            self.client.create_automation(automation)


def _schedule(found: DeploymentSchedule) -> dict[str, Any]:
    if not isinstance(found.schedule, CronSchedule):
        return found.model_dump(mode="json", include={"schedule"})
    return {"cron": found.schedule.cron, "timezone": found.schedule.timezone}
