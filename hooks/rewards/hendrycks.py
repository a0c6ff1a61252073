r"""The MATH normal form: answers that are written alike become the same text (Hendrycks et al., arXiv:2103.03874).

The rules are applied in the order in which the field's graders apply them, since their results depend on it.
"""

import re

WRAPPED_TEXT = re.compile(r"^\\text\{(.+?)\}$")
SHORT_FRACTION = re.compile(r"\\frac([^{])(.)", re.DOTALL)
BARE_ROOT = re.compile(r"\\sqrt([^{])", re.DOTALL)
INTEGER_RATIO = re.compile(r"(0|-?[1-9]\d*)/(0|-?[1-9]\d*)", re.ASCII)
DROPPED = ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")


def unwrap_text(answer: str) -> str:
    r"""`\text{even}` -> `even`; everything else unchanged."""
    match = WRAPPED_TEXT.search(answer)
    return match.group(1) if match else answer


def hendrycks_form(answer: str) -> str:
    r"""The normal form; an answer that the rules can not read (two units, a `\frac` without operands) stays as it is.

    Example: `\dfrac12` -> `\frac{1}{2}`; `x = 5` -> `5`; `50\%` -> `50`; `3 \text{ cm}` -> `3`
    """
    answer = unwrap_text(answer.strip()).strip()
    text = answer.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    for dropped in DROPPED:
        text = text.replace(dropped, "")
    parts = text.split("\\text{ ")
    if len(parts) > 2:
        return answer
    text = parts[0].replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    text = without_short_left_side("0" + text if text[0] == "." else text)
    if text.endswith(("\\sqrt", "\\frac")):
        return answer
    text = BARE_ROOT.sub(r"\\sqrt{\1}", text).replace(" ", "")
    text = SHORT_FRACTION.sub(_braced, text)
    if text == "0.5":
        return "\\frac{1}{2}"
    return INTEGER_RATIO.sub(r"\\frac{\1}{\2}", text) if INTEGER_RATIO.fullmatch(text) else text


def without_short_left_side(text: str) -> str:
    """`x=5` -> `5` where the left side has at most two characters."""
    sides = text.split("=")
    return sides[1] if len(sides) == 2 and len(sides[0]) <= 2 else text


def _braced(match: re.Match[str]) -> str:
    numerator, denominator = match.groups()
    return f"\\frac{{{numerator}}}" + (denominator if denominator == "{" else f"{{{denominator}}}")
