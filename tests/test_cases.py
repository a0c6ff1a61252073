"""No known case lies there unread."""

from pathlib import Path

from tests.cases_of import CASES, NOT_YET

TESTS = Path(__file__).parent


def test_every_known_case_is_read_by_a_test_or_says_why_not():
    own = {Path(__file__).name, "cases_of.py"}
    sources = "\n".join(f.read_text() for f in TESTS.rglob("*.py") if f.name not in own)
    unread = {name for name in CASES if f'"{name}"' not in sources}
    assert unread == set(NOT_YET)
