"""A number of a plan, with its source or the reason why it is not known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self


@dataclass(frozen=True)
class Quantity:
    """A number. value: None if not known. source: origin, or why not known. at_least: the value is a lower bound."""

    value: float | None
    source: str
    at_least: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the number as stored in plan.json."""
        return {"value": self.value, "from": self.source, **({"at_least": True} if self.at_least else {})}

    @classmethod
    def of_dict(cls, told: dict[str, Any]) -> Self:
        """Read the number from its form in plan.json."""
        return cls(told.get("value"), str(told.get("from", "")), bool(told.get("at_least", False)))

    def times(self, factor: float, why: str = "") -> Quantity:
        """Return the value times a factor; `why` is added to the source."""
        if self.value is None:
            return self
        return replace(self, value=self.value * factor, source=f"{self.source}{why}")


def unknown(why: str) -> Quantity:
    """Return a number that is not known."""
    return Quantity(None, why)


def first_known(found: Iterable[Quantity], why_not: str) -> Quantity:
    """Return the first number that is known; if there is none, an unknown one with all reasons."""
    listed = list(found)
    for quantity in listed:
        if quantity.value is not None:
            return quantity
    reasons = dict.fromkeys(q.source for q in listed if q.source)
    return unknown("; ".join(reasons) or why_not)


def total(parts: Iterable[Quantity]) -> Quantity:
    """Return the sum; `at_least` if a part is not known, unknown if no part is known."""
    listed = list(parts)
    values = [q.value for q in listed if q.value is not None]
    sources = "; ".join(dict.fromkeys(q.source for q in listed))
    if not values:
        return unknown(sources)
    return Quantity(sum(values), sources, len(values) < len(listed) or any(q.at_least for q in listed))
