"""Where CI=true, a collected test that did not run fails the session: skipped, deselected or expected to fail."""

import os

import pytest

NOT_RUN = ("skipped", "deselected", "xfailed", "xpassed")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") != "true" or reporter is None:
        return
    counts = {kind: len(reporter.stats.get(kind, ())) for kind in NOT_RUN}
    if any(counts.values()) and session.exitstatus == pytest.ExitCode.OK:
        shown = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        reporter.ensure_newline()
        reporter.write_line(f"Every test has to run here: {shown}.", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
