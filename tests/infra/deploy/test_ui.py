"""What a person sees and does in Prefect's UI, in a headless Chromium."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from prefect.client.schemas.filters import DeploymentFilter
from prefect.states import Cancelled

from infra.chaos.processes import wait_until
from infra.pool.process import carrying
from tests.flows.night import awaited, create_children, ended, read
from tests.machine_fixture import Machine

pytestmark = [pytest.mark.prefect, pytest.mark.browser]

CHROMIUM = "/usr/bin/chromium"
# Nothing outside this machine is asked for.
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", *QUIET]
LIMIT_MS = 60_000
GONE_SECONDS = 15.0
TRIES = 5  # SQLite is locked now and then, and the UI leaves it to the person to try again


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(LIMIT_MS)
        yield page
        browser.close()


def deployment_of(machine: Machine, name: str) -> Any:
    with machine.client() as client:
        return client.read_deployment_by_name(f"fanout-regression/{name}")


def until_accepted(page: Page, act: Callable[[], None], path: str) -> None:
    """Do it again while the server answers that it is busy."""
    for _ in range(TRIES):
        with page.expect_response(lambda answer: answer.request.method == "POST" and path in answer.url) as answer:
            act()
        if answer.value.status != 503:
            return
    raise AssertionError(f"{path} was answered with 503 {TRIES} times")


def test_the_form_refuses_a_wrong_value_with_words_and_takes_a_right_one(machine: Machine, page: Page):
    tiny = deployment_of(machine, "tiny")
    page.goto(f"{machine.api_url.removesuffix('/api')}/deployments/deployment/{tiny.id}/run")
    seed, submit = page.locator("input[type=number]").first, page.get_by_role("button", name="Submit")
    expect(page.get_by_text("seed of data order and generation")).to_be_visible(timeout=LIMIT_MS)
    seed.fill("-1")
    submit.click()
    refused = page.get_by_text(
        "Validation failed for field 'scenario.seed'. Failure reason: -1 is less than the minimum"
    )
    expect(refused.first).to_be_visible(timeout=LIMIT_MS)

    seed.fill("11")
    until_accepted(page, submit.click, f"{tiny.id}/create_flow_run")
    page.wait_for_url(re.compile(f"/deployments/deployment/{tiny.id}.*tab=Runs"), timeout=LIMIT_MS)
    with machine.client() as client:
        runs = client.read_flow_runs(deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [tiny.id]}}))
        (mine,) = (run for run in runs if run.parameters["scenario"]["seed"] == 11)
        client.set_flow_run_state(mine.id, Cancelled(), force=True)


def test_a_failed_run_says_its_verdict_and_is_retried_from_its_page(machine: Machine, page: Page):
    create_children(machine, {"red-in-ui": {"ends": "REGRESSION"}})
    with machine.client() as client:
        run = client.create_flow_run_from_deployment(deployment_of(machine, "red-in-ui").id)
    first = ended(machine, run.id)
    page.goto(f"{machine.api_url.removesuffix('/api')}/runs/flow-run/{run.id}")
    expect(page.get_by_text("REGRESSION").first).to_be_visible(timeout=LIMIT_MS)

    def retry() -> None:
        page.get_by_role("button", name="Retry").first.click()
        page.get_by_role("button", name="Retry").last.click()

    until_accepted(page, retry, f"{run.id}/set_state")
    again = awaited(machine, run.id, lambda it: it.state.is_final() and it.run_count > first.run_count)
    assert again.state.name == "REGRESSION" and read(machine, run.id).run_count == 2


def test_a_run_is_cancelled_from_its_page_and_is_gone(machine: Machine, page: Page):
    create_children(machine, {"long-in-ui": {"ends": "PASS", "seconds": 600.0}})
    with machine.client() as client:
        run = client.create_flow_run_from_deployment(deployment_of(machine, "long-in-ui").id)
    awaited(machine, run.id, lambda it: it.state.is_running())
    mine = partial(carrying, "PREFECT__FLOW_RUN_ID", str(run.id))
    assert mine() != []
    page.goto(f"{machine.api_url.removesuffix('/api')}/runs/flow-run/{run.id}")

    def cancel() -> None:
        page.get_by_role("button", name="Cancel").first.click()
        page.get_by_role("button", name="Confirm").click()

    until_accepted(page, cancel, f"{run.id}/set_state")
    assert ended(machine, run.id).state.name == "Cancelled"
    assert wait_until(lambda: mine() == [], GONE_SECONDS), mine()
