"""The checks as JUnit XML, for the test pages of CI systems: one test case a check."""

import re
from typing import Any
from xml.etree import ElementTree as ET

TAGS = {"fail": "failure", "inconclusive": "failure", "infra": "error", "not run": "skipped"}
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(summary: dict[str, Any]) -> bytes:
    """`fail` is a failure, `infra` an error, `inconclusive` a failure of that type, `not run` is skipped."""
    checks = summary["checks"]
    count = {status: sum(c["status"] == status for c in checks) for status in {c["status"] for c in checks}}
    suite = ET.Element(
        "testsuite",
        name=f"fanline {summary['scenario']['name']}",
        tests=str(len(checks)),
        failures=str(count.get("fail", 0) + count.get("inconclusive", 0)),
        errors=str(count.get("infra", 0)),
        skipped=str(count.get("not run", 0)),
        time=f"{sum(summary['seconds_by_stage'].values()):.3f}",
    )
    properties = ET.SubElement(suite, "properties")
    for name in ("verdict", "run", "weights_digest", "environment_digest", "scenario_digest", "code_digest"):
        ET.SubElement(properties, "property", name=name, value=_text(summary[name]))
    for check in checks:
        case = ET.SubElement(suite, "testcase", classname="fanline.checks", name=check["name"])
        tag = {"fail": "failure", "inconclusive": "failure", "infra": "error", "not run": "skipped"}.get(
            check["status"]
        )
        if tag:
            ET.SubElement(case, tag, type=check["status"], message=_text(check["reason"]))
    return ET.tostring(suite, encoding="utf-8", xml_declaration=True)


def _text(value: Any) -> str:
    """Characters that XML can not hold become a question mark."""
    return NOT_XML.sub("?", "" if value is None else str(value))
