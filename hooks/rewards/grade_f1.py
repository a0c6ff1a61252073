"""Token F1 of SQuAD (Rajpurkar et al., arXiv:1606.05250), with the rule of HotpotQA for yes/no answers."""

import re
import string
from collections import Counter
from typing import Any

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")
CLOSED_ANSWERS = ("yes", "no", "noanswer")


def grade(response: str, label: str, metadata: dict[str, Any]) -> float:
    """Harmonic mean of token precision and recall; a yes/no/noanswer on either side has to match as a whole.

    Example: ("The quick fox", "quick brown fox") -> 2 of 2 tokens right, 2 of 3 found: 0.8
    """
    given, truth = normal(response), normal(str(label))
    if given != truth and (given in CLOSED_ANSWERS or truth in CLOSED_ANSWERS):
        return 0.0
    given_tokens, truth_tokens = given.split(), truth.split()
    common = (Counter(given_tokens) & Counter(truth_tokens)).total()
    return 2 * common / (len(given_tokens) + len(truth_tokens)) if common else 0.0


def normal(text: str) -> str:
    """Lower case, without punctuation, articles and repeated white space."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


quick = grade
