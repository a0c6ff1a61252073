"""Where an answer stands in a response: boxed, behind the thinking, without the end-of-answer tokens."""

import re

SPECIAL_TOKENS = re.compile(r"<\|[^|<>]*\|>|</s>|<(?:eos|pad|bos)>|<｜[^｜<>]*｜>")
BOXES = ("\\boxed", "\\fbox")


def without_special_tokens(text: str) -> str:
    """The text without end-of-answer tokens (`<|im_end|>`, `</s>`, …) and without the white space around it."""
    return SPECIAL_TOKENS.sub("", text).strip()


def behind_thinking(response: str) -> str | None:
    """Text after the last `</think>`, else the part after the first `###Response`, else None (DeepScaleR's rule)."""
    if "</think>" in response:
        return response.rpartition("</think>")[2]
    parts = response.split("###Response")
    return parts[1] if len(parts) > 1 else None


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{…}` holds (`\fbox{…}` where no `\boxed` is), or None where its braces do not balance.

    Example: `\boxed{1} \boxed{\frac{1}{2}}` -> `\frac{1}{2}`; `\boxed{1} \boxed{2` -> None; `\boxed 5` -> None
    """
    box = next((box for box in BOXES if box in text), None)
    if box is None:
        return None
    body = text.rfind(box) + len(box) + 1
    if text[body - 1 : body] != "{":
        return None
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, body):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[body : brace.start()]
    return None
