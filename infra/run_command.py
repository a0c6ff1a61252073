"""`fanline run`: the flow on this machine, from this process, with its verdict as the exit code."""

import contextlib
import os
import sys
from collections.abc import Iterator

from infra.errors import FanlineError
from infra.prefect_api import prefect_api
from infra.records.verdict import Outcome
from infra.scenario.model import Scenario
from infra.scenario.review import refuse_unsupported, warnings_of
from infra.settings import settings


def run_scenario(scenario: Scenario, store: str | None, resume: str | None, *, as_json: bool) -> int:
    """Run the flow and print its verdict; returns the exit code.

    Raises:
        FanlineError: the run could not be opened (configuration, store).
    """
    refuse_unsupported(scenario)
    for words in warnings_of(scenario):
        print(f"fanline: warning: {words}", file=sys.stderr)
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # errors are told once, in words
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # other libraries' bars are noise in a log file
    log = settings().spool_dir / "prefect-server.log"
    with stdout_for_the_result(), prefect_api(log) as url:
        print(
            f"fanline: {scenario.name}, seed {scenario.seed}; watch it at {url.removesuffix('/api')}", file=sys.stderr
        )
        from flows.fanout_regression import fanout_regression

        state = fanout_regression(scenario, store=store, resume_from=resume, return_state=True)
    # An error that kept the run from a report may have a verdict's name all the same: a store that is gone is INFRA.
    if state.name not in Outcome.__members__ or isinstance(state.result(raise_on_failure=False), FanlineError):
        state.result()
    _print(store or settings().store_uri, str(state.message).split(":")[0], as_json=as_json)
    return Outcome[str(state.name)].value


@contextlib.contextmanager
def stdout_for_the_result() -> Iterator[None]:
    """What libraries print on standard output goes to standard error: Ray does, from threads of its own."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _print(store_uri: str, run_id: str, *, as_json: bool) -> None:
    from infra.show import show_run

    show_run(store_uri, run_id, as_json=as_json)
