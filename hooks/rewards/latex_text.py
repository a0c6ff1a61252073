r"""LaTeX to the plain one-line text that the DeepScaleR comparison reads.

`7 \frac{3}{4}` -> `7 3/4`; `\sqrt{2}` -> `sqrt(2)`.

A fraction is written without parentheses and a root without its index, as the field's grader writes them: its
results are what runs are compared with. Nothing is evaluated here.
"""

import re

TOKEN = re.compile(r"\\[A-Za-z]+\s*|\\.|.", re.DOTALL)
DEEPEST = 100
GREEK = (
    "alpha α beta β gamma γ delta δ epsilon ε zeta ζ eta η theta θ iota ι kappa κ lambda λ mu μ nu ν xi ξ rho ρ "
    "sigma σ tau τ upsilon υ phi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Sigma Σ Phi Φ Psi Ψ Omega Ω"
)
SYMBOLS = (
    "pi pi infty inf cdot * times * cup U cap ∩ in ∈ notin ∉ pm ± mp ∓ div ÷ le ≤ leq ≤ ge ≥ geq ≥ neq ≠ to → "
    "rightarrow → ldots … dots … cdots ⋯ angle ∠ circ ∘ emptyset ∅ varnothing ∅ subset ⊂ subseteq ⊆ triangle ▵ "
    "perp ⊥ parallel ∥ approx ≈ equiv ≡ mid | lvert | rvert | vert | prime ′ degree °"
)
FUNCTIONS = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp lim max min gcd"
SPACES = {"quad": "  ", "qquad": "    ", ",": " ", ";": " ", ":": " ", " ": " ", "\\": ";"}


class NestedTooDeeply(ValueError):
    """Braces, or commands as arguments of commands, more than 100 deep."""


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


NAMED = {
    **_pairs(GREEK),
    **_pairs(SYMBOLS),
    **SPACES,
    **{word: word for word in FUNCTIONS.split()},
    **{mark: mark for mark in "{}%$&#_"},
}


def latex_to_text(latex: str) -> str:
    """Plain text; unknown commands vanish, their arguments stay.

    Raises:
        NestedTooDeeply: see the class.
    """
    return "".join(_read(TOKEN.findall(latex)[::-1], closing="", depth=0)).strip()


def _read(tokens: list[str], closing: str, depth: int) -> list[str]:
    """Text of the tokens (a stack, the next one last) up to the closing token, which is taken too."""
    text: list[str] = []
    while tokens:
        token = tokens.pop()
        if token == closing:
            break
        text.append(_text_of(token, tokens, depth))
    return text


def _text_of(token: str, tokens: list[str], depth: int) -> str:
    if depth > DEEPEST:
        raise NestedTooDeeply(f"more than {DEEPEST} deep")
    if token == "{":
        return "".join(_read(tokens, "}", depth + 1))
    if token == "}":
        return ""
    if not token.startswith("\\"):
        return {"&": " ", "\n": " ", "$": ""}.get(token, token)
    name = token[1:].strip() or " "
    if name == "frac":
        return f"{_argument(tokens, depth)}/{_argument(tokens, depth)}"
    if name == "sqrt":
        _skip_index(tokens, depth)
        return f"sqrt({_argument(tokens, depth)})"
    if name in ("begin", "end"):
        matrix = _argument(tokens, depth).strip().endswith("matrix")
        return {"begin": "[", "end": "]"}[name] if matrix else ""
    return NAMED.get(name, "")


def _argument(tokens: list[str], depth: int) -> str:
    """The next argument of a command: a group, or one token with what belongs to it."""
    while tokens and tokens[-1].isspace():
        tokens.pop()
    return _text_of(tokens.pop(), tokens, depth + 1) if tokens else ""


def _skip_index(tokens: list[str], depth: int) -> None:
    if tokens and tokens[-1] == "[":
        tokens.pop()
        _read(tokens, "]", depth + 1)
