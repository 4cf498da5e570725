"""Read and render a CycleCloud template: nested [sections], `key = value`, `key := expression`, '''several lines'''."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

HEADING = re.compile(r"^(\[+)\s*(.+?)\s*(\]+)$")
KEY = re.compile(r"^([A-Za-z_][\w.]*)\s*(:?=)\s*(.*)$")
USED = re.compile(r"(?<!\{)\$([A-Za-z_]\w*)")
CALL = re.compile(r"^StrJoin\((.*)\)$")


@dataclass
class Section:
    """One heading with its content; `kind name` as in [[nodearray gpu]]."""

    kind: str
    name: str
    depth: int
    values: dict[str, str] = field(default_factory=dict)
    inner: list[Section] = field(default_factory=list)

    def every(self, kind: str) -> list[Section]:
        """All sections of a kind at any depth under this one."""
        found = [s for s in self.inner if s.kind == kind]
        return found + [deep for s in self.inner for deep in s.every(kind)]

    def all(self) -> list[Section]:
        """This section and all under it."""
        return [self, *(deep for s in self.inner for deep in s.all())]


def parse(text: str) -> Section:
    """The template as a tree. ValueError naming the line that is none of heading, setting, comment."""
    root = Section("file", "", 0)
    path = [root]
    lines = iter(enumerate(text.splitlines(), 1))
    for number, raw in lines:
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if heading := HEADING.match(line):
            _open(path, heading, number)
            continue
        setting = KEY.match(line)
        if not setting:
            raise ValueError(f"line {number}: neither a heading nor a setting: {raw!r}")
        key, _, value = setting.groups()
        if key in path[-1].values:
            raise ValueError(f"line {number}: {key} is set twice in {path[-1].kind} {path[-1].name}")
        if value.startswith("'''"):
            value = _several_lines(value[3:], lines, number)
        path[-1].values[key] = value
    return root


def _open(path: list[Section], heading: re.Match[str], number: int) -> None:
    opened, words, closed = heading.groups()
    depth = len(opened)
    if depth != len(closed):
        raise ValueError(f"line {number}: {depth} brackets open, {len(closed)} close")
    if depth > path[-1].depth + 1:
        raise ValueError(f"line {number}: {words} is {depth} deep under a section {path[-1].depth} deep")
    kind, _, name = words.partition(" ")
    del path[depth:]
    section = Section(kind, name.strip(), depth)
    if name and any((s.kind, s.name) == (kind, section.name) for s in path[-1].inner):
        raise ValueError(f"line {number}: a second {words}")
    path[-1].inner.append(section)
    path.append(section)


def _several_lines(first: str, lines, number: int) -> str:
    kept = [first]
    while not kept[-1].endswith("'''"):
        try:
            kept.append(next(lines)[1])
        except StopIteration:
            raise ValueError(f"line {number}: ''' never ends") from None
    return "\n".join(kept).removesuffix("'''")


def parameters(root: Section) -> dict[str, Section]:
    """Every [[[parameter NAME]]] of the template."""
    return {s.name: s for s in root.every("parameter")}


def used_parameters(root: Section) -> set[str]:
    """Names that $NAME uses, in nodes and their configuration."""
    (cluster,) = [s for s in root.inner if s.kind == "cluster"]
    return {name for s in cluster.all() for value in s.values.values() for name in USED.findall(value)}


def render(root: Section, values: dict[str, str]) -> dict[str, dict[str, str]]:
    """Every node and node array with its settings, defaults and `Extends` laid under, parameters put in.

    KeyError for a parameter without value, ValueError for an expression that is not one of the few known here."""
    (cluster,) = [s for s in root.inner if s.kind == "cluster"]
    flat = {(s.kind, s.name): _flat(s) for s in cluster.inner}
    given = {n: s.values["DefaultValue"] for n, s in parameters(root).items() if "DefaultValue" in s.values}
    given |= {"ClusterName": "lab", **values}
    nodes = {}
    for (_, name), own in flat.items():
        if name == "defaults" or own.get("Abstract") == "true":
            continue
        base = flat["node", own["Extends"]] if "Extends" in own else {}
        merged = {k: v for k, v in {**flat["node", "defaults"], **base, **own}.items() if k != "Abstract"}
        nodes[name] = {key: _resolve(value, given) for key, value in merged.items()}
    return nodes


def _flat(section: Section) -> dict[str, str]:
    values = dict(section.values)
    for inner in section.inner:
        prefix = f"{inner.name}." if inner.kind == "configuration" and inner.name else ""
        if inner.kind != "configuration":
            prefix = f"{inner.kind} {inner.name}:"
            values[prefix] = ""
        values |= {prefix + key: value for key, value in inner.values.items()}
    return values


def _resolve(value: str, given: dict[str, str]) -> str:
    if value.startswith("${"):
        call = CALL.match(value[2:-1])
        if not call:
            raise ValueError(f"unknown expression {value}")
        words = [w.strip() for w in call.group(1).split(",")]
        plain = [w[1:-1] if w.startswith('"') else given[w] for w in words]
        return plain[0].join(plain[1:])
    return USED.sub(lambda m: given[m.group(1)], value)
