"""What differs between the settings and inputs of earlier work and those of now, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lsdflow_contract.manifest import Manifest

LISTED = 6


def differences(earlier: Manifest, config: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """At most LISTED of "name old -> new" and "another NAME" (an input); empty if nothing that is known differs."""
    changed = [*_changed("", earlier.config, config)]
    names = sorted({*earlier.inputs, *inputs})
    changed += [f"another {name}" for name in names if earlier.inputs.get(name) != inputs.get(name)]
    more = [f"and {len(changed) - LISTED} more"] if len(changed) > LISTED else []
    return ", ".join([*changed[:LISTED], *more])


def _changed(prefix: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        before, now = old.get(name, "none"), new.get(name, "none")
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            yield from _changed(f"{prefix}{name}.", before, now)
        # A manifest was JSON: its tuples have become lists.
        elif before != (list(now) if isinstance(now, tuple) else now):
            yield f"{prefix}{name} {_said(before)} -> {_said(now)}"


def _said(value: object) -> object:
    return "none" if value is None else value
