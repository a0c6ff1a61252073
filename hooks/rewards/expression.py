"""A strict reader of arithmetic and algebra: digits, one-letter symbols, pi, sqrt, ln, + - * / ^ ! and parentheses.

Answers are text from a model, so nothing here evaluates Python: the reader builds the expression node by node and
refuses everything else, also powers and factorials whose value would not fit into a few thousand digits.
"""

import re
from fractions import Fraction

import sympy

TOKEN = re.compile(r"\d+\.?\d*|\.\d+|\*\*|sqrt|pi|ln|[a-zα-ω]|[-+*/^!()]", re.ASCII | re.IGNORECASE)
LONGEST, DEEPEST, MOST_BITS, LARGEST_FACTORIAL = 1000, 60, 20_000, 1000
FUNCTIONS = {"sqrt": sympy.sqrt, "ln": sympy.log}


class NotAnExpression(ValueError):
    """The text is not an expression of this grammar, or its value is too large to be written down."""


def read_expression(text: str) -> sympy.Expr:
    """The expression that the text (lower case, no spaces) stands for; juxtaposition multiplies.

    Example: `2sqrt(2)` -> 2*sqrt(2); `x(x+1)/2` -> x*(x + 1)/2; `3.5` -> 7/2
    Raises:
        NotAnExpression: see the class.
    """
    if len(text) > LONGEST:
        raise NotAnExpression(f"{len(text)} characters")
    tokens = TOKEN.findall(text)
    if "".join(tokens) != text:
        raise NotAnExpression(text)
    reader = _Reader([*tokens, ""][::-1])
    value = reader.sum()
    if reader.rest != [""]:
        raise NotAnExpression(text)
    return value


class _Reader:
    """Recursive descent over a stack of tokens, the next one last."""

    def __init__(self, rest: list[str]):
        self.rest = rest
        self.depth = 0

    def take(self, *wanted: str) -> str:
        return self.rest.pop() if self.rest[-1] and self.rest[-1] in wanted else ""

    def sum(self) -> sympy.Expr:
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotAnExpression("nested too deeply")
        value = self.product()
        while sign := self.take("+", "-"):
            term = self.product()
            value = value + term if sign == "+" else value - term
        self.depth -= 1
        return value

    def product(self) -> sympy.Expr:
        value = self.signed()
        while self.rest[-1] not in ("", "+", "-", ")"):
            if self.take("/"):
                divisor = self.signed()
                if divisor == 0:
                    raise NotAnExpression("division by zero")
                value = value / divisor
            else:
                self.take("*")
                value = value * self.signed()
        return value

    def signed(self) -> sympy.Expr:
        negative = False
        while sign := self.take("+", "-"):
            negative ^= sign == "-"
        value = self.power()
        return -value if negative else value

    def power(self) -> sympy.Expr:
        base = self.factorial()
        return bounded_power(base, self.signed()) if self.take("^", "**") else base

    def factorial(self) -> sympy.Expr:
        value = self.atom()
        while self.take("!"):
            if not (value.is_Integer and 0 <= int(value) <= LARGEST_FACTORIAL):
                raise NotAnExpression("factorial")
            value = sympy.factorial(value)
        return value

    def atom(self) -> sympy.Expr:
        token = self.rest.pop()
        if token == "(":
            value = self.sum()
            if not self.take(")"):
                raise NotAnExpression("parentheses do not balance")
            return value
        if token in FUNCTIONS:
            return FUNCTIONS[token](self.factorial())
        if token == "pi":
            return sympy.pi
        if token[:1].isdigit() or token[:1] == ".":
            exact = Fraction(token.rstrip(".")) if token != "." else Fraction(0)
            return sympy.Rational(exact.numerator, exact.denominator)
        if token.isalpha():
            return sympy.Symbol(token)
        raise NotAnExpression(f"unexpected {token!r}")


def bounded_power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    """`base ** exponent` where the result has at most `MOST_BITS` bits.

    Raises:
        NotAnExpression: the power of two numbers is larger, or 0 to a negative power.
    """
    if base.is_Rational and exponent.is_Rational:
        bits = max(int(base.p).bit_length(), int(base.q).bit_length())  # type: ignore[attr-defined]
        if abs(exponent) * bits > MOST_BITS or (base == 0 and exponent < 0):
            raise NotAnExpression("power out of range")
    elif exponent.is_Rational and abs(exponent) > MOST_BITS:
        raise NotAnExpression("power out of range")
    return base**exponent


def same_value(first: sympy.Expr, second: sympy.Expr) -> bool:
    """Whether two expressions are equal for all values of their symbols.

    A difference that is plainly not 0 at one rational point settles it before the costly `simplify`.
    """
    difference = first - second
    if difference == 0:
        return True
    symbols = sorted(difference.free_symbols, key=str)
    if not symbols and difference.is_Rational:
        return False
    at_point: dict[sympy.Basic, sympy.Basic | float] = {
        s: sympy.Rational(7 * i + 11, 5 * i + 13) for i, s in enumerate(symbols)
    }
    value = difference.evalf(30, subs=at_point)
    if value.is_number and value.is_comparable and abs(value) > 1e-9:
        return False
    return sympy.simplify(difference) == 0
