"""The drawings of docs/how_it_works.md, as SVG: made from small real computations, not drawn by hand.

Run it to write docs/drawings/*.svg; a test compares them. Each has a light card of its own, so it is read on any page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "drawings"
INK, SOFT, PAPER = "#22303c", "#8797a6", "#f7f9fb"
CELLS = ("#2a9d8f", "#e9a23b", "#d1495b", "#6c5bb5")
Point = tuple[float, float]

# Three neurites in one section: letters are cells, blanks membrane.
SECTION = (
    "AAAAAA BBBBBBBB",
    "AAAAAAA BBBBBBB",
    "AAAAAAA  BBBBBB",
    " AAAAAAA BBBBBB",
    "C AAAAAA  BBBBB",
    "CC AAAAAA  BBBB",
    "CCC  AAAAA  BBB",
    "CCCCC  AAA CCBB",
    "CCCCCCC   CCC B",
    "CCCCCCCCCCCCCC ",
)


def main() -> None:
    """Write all drawings."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


def lsds() -> str:
    """A neurite, a voxel in it, the Gaussian window, its mean offset and its spread."""
    cell = SECTION_CELLS["A"]
    parts = _grid(30, 34, 22, {place: CELLS[0] if place in cell else "#e4eaef" for place in _places()})
    at = (2, 5)
    mean, (spread_y, spread_x), angle = descriptors(cell, at, sigma=3.0)
    centre, middle = _middle(30, 34, 22, at), _middle(30, 34, 22, mean)
    parts.append(
        f'<circle cx="{centre[0]:.1f}" cy="{centre[1]:.1f}" r="66" fill="none" stroke="{INK}" stroke-dasharray="5 4"/>'
    )
    parts.append(
        f'<ellipse cx="{middle[0]:.1f}" cy="{middle[1]:.1f}" rx="{22 * spread_x:.1f}" ry="{22 * spread_y:.1f}" '
        f'transform="rotate({angle:.1f} {middle[0]:.1f} {middle[1]:.1f})" fill="{CELLS[1]}" fill-opacity=".45" '
        f'stroke="{INK}"/>'
    )
    parts.append(_arrow(centre, middle, CELLS[2]))
    parts.append(f'<circle cx="{centre[0]:.1f}" cy="{centre[1]:.1f}" r="4" fill="{INK}"/>')
    notes = (
        ("the voxel, and the window around it (Gaussian, sigma)", INK),
        ("mean offset: from the voxel to the centre of its own cell's part", CELLS[2]),
        ("spread: variances along the axes and how they go together", CELLS[1]),
        ("size: how much of the window is its own cell", CELLS[0]),
    )
    parts += _notes(390, 70, notes)
    return _svg(820, 290, parts, "Local shape descriptors of one voxel")


def affinities() -> str:
    """Each voxel and its neighbours: are they the same cell?"""
    parts = _grid(30, 34, 22, {place: _colour(place) for place in _places()})
    for y, x in _places():
        for dy, dx in ((-1, 0), (0, -1)):
            other = (y + dy, x + dx)
            if min(other) < 0:
                continue
            same = _cell((y, x)) == _cell(other) != " "
            a, b = _middle(30, 34, 22, (y, x)), _middle(30, 34, 22, other)
            if same:
                parts.append(_line(a, b, INK, 1.6))
            elif _cell((y, x)) != " " and _cell(other) != " ":
                parts.append(_line(a, b, CELLS[2], 1.6, "2 2"))
    notes = (
        ("one affinity for each voxel and its lower neighbour in z, y, x", INK),
        ("line: same cell, affinity 1; no line: membrane, affinity 0", INK),
        ("dotted: two cells that touch, affinity 0", CELLS[2]),
        ("stored as 0 to 255 in three channels, volumes/affs", SOFT),
    )
    parts += _notes(390, 90, notes)
    return _svg(820, 290, parts, "Affinities between neighbouring voxels")


def watershed() -> str:
    """One line through three cells: distance to the boundary, seeds, where the floods meet."""
    width = [0, 1, 2, 3, 4, 5, 4, 3, 4, 5, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0]
    left, floor, step, height = 40.0, 210.0, 14.0, 24.0
    basins = basins_of(width)
    parts = []
    for i, (deep, basin) in enumerate(zip(width, basins, strict=True)):
        if basin:
            x = left + i * step
            colour = CELLS[(basin - 1) % len(CELLS)]
            style = f'fill="{colour}" fill-opacity=".75"'
            parts.append(_box(x, floor - deep * height, step - 1, deep * height, style))
    seeds = seeds_of(width)
    for i in seeds:
        x = left + i * step + step / 2
        parts.append(f'<circle cx="{x:.1f}" cy="{floor - width[i] * height - 9:.1f}" r="5" fill="{INK}"/>')
    parts.append(_line((left, floor), (left + len(width) * step, floor), INK, 1.2))
    parts.append(
        _text(left, floor + 24, "a line of voxels across three cells; height: distance to the nearest membrane", SOFT)
    )
    notes = (
        ("seed: the deepest voxel of a window", INK),
        ("each seed floods until it meets another", CELLS[0]),
        ("a neck may split one cell in two fragments:", CELLS[1]),
        ("agglomeration joins them again", SOFT),
    )
    parts += _notes(530, 70, notes)
    return _svg(820, 260, parts, "Watershed: seeds and fragments")


def agglomeration() -> str:
    """A graph of fragments; cheapest edges first, up to the threshold."""
    nodes: dict[str, Point] = {
        "1": (70, 80),
        "2": (190, 60),
        "3": (130, 170),
        "4": (290, 130),
        "5": (400, 70),
        "6": (390, 190),
    }
    edges = [
        ("1", "2", 0.08),
        ("1", "3", 0.15),
        ("2", "3", 0.22),
        ("2", "4", 0.81),
        ("3", "4", 0.74),
        ("4", "5", 0.12),
        ("4", "6", 0.31),
        ("5", "6", 0.66),
    ]
    threshold = 0.4
    segment = segments_of(list(nodes), edges, threshold)
    parts = []
    for u, v, score in edges:
        merged = score <= threshold
        parts.append(
            _line(nodes[u], nodes[v], INK if merged else CELLS[2], 3 if merged else 1.5, "" if merged else "5 4")
        )
        x, y = (nodes[u][0] + nodes[v][0]) / 2, (nodes[u][1] + nodes[v][1]) / 2
        parts.append(f'<rect x="{x - 17:.1f}" y="{y - 10:.1f}" width="34" height="18" rx="4" fill="{PAPER}"/>')
        parts.append(_text(x, y + 4, f"{score:.2f}", INK, "middle"))
    order = sorted(set(segment.values()))
    for name, (x, y) in nodes.items():
        colour = CELLS[order.index(segment[name])]
        parts.append(f'<circle cx="{x}" cy="{y}" r="21" fill="{colour}"/>')
        parts.append(_text(x, y + 5, name, "#ffffff", "middle"))
    notes = (
        ("score of an edge = 1 - a quantile of the affinities", INK),
        ("on the whole face between the two", INK),
        ("score <= threshold 0.40: joined; cheapest first,", INK),
        ("and the scores of the larger pieces computed again", SOFT),
        ("a segment is named by its smallest fragment: 1 and 4", CELLS[0]),
    )
    parts += _notes(480, 60, notes)
    return _svg(820, 250, parts, "Agglomeration of the region adjacency graph")


def blocks() -> str:
    """Blocks with context: what is written, what is read, why a fragment has one name in both."""
    parts = [
        _box(50, 50, 150, 150, f'fill="{CELLS[0]}" fill-opacity=".18" stroke="{INK}"'),
        _box(200, 50, 150, 150, f'fill="{CELLS[1]}" fill-opacity=".18" stroke="{INK}"'),
        _box(20, 20, 210, 210, f'fill="none" stroke="{CELLS[0]}" stroke-width="2" stroke-dasharray="6 4"'),
        _box(170, 26, 210, 198, f'fill="none" stroke="{CELLS[1]}" stroke-width="2" stroke-dasharray="6 4"'),
        f'<path d="M70 150 C 130 90, 250 170, 330 95" fill="none" stroke="{CELLS[3]}" stroke-width="22" '
        'stroke-linecap="round" stroke-opacity=".75"/>',
        f'<circle cx="188" cy="133" r="6" fill="{INK}"/>',
        _text(58, 68, "block 1", INK),
        _text(342, 68, "block 2", INK, "end"),
    ]
    notes = (
        ("filled: what a block writes; dashed: what it reads (context)", INK),
        ("the seed of this fragment is in both contexts:", CELLS[3]),
        ("both give it the id 1 + place of the seed in the volume,", CELLS[3]),
        ("so it continues across the face; nothing is stitched", SOFT),
        ("affinities on the face are summed from both blocks", SOFT),
    )
    parts += _notes(410, 70, notes)
    return _svg(820, 250, parts, "Seamless blocks")


def descriptors(cell: set[tuple[int, int]], at: tuple[int, int], sigma: float) -> tuple[Point, Point, float]:
    """Mean place (y, x), standard deviations along the long axes and their angle, of the cell as the voxel sees it."""
    weights = {p: math.exp(-((p[0] - at[0]) ** 2 + (p[1] - at[1]) ** 2) / (2 * sigma**2)) for p in cell}
    total = sum(weights.values())
    y, x = (sum(w * p[i] for p, w in weights.items()) / total for i in (0, 1))
    yy = sum(w * (p[0] - y) ** 2 for p, w in weights.items()) / total
    xx = sum(w * (p[1] - x) ** 2 for p, w in weights.items()) / total
    yx = sum(w * (p[0] - y) * (p[1] - x) for p, w in weights.items()) / total
    angle = 0.5 * math.atan2(2 * yx, xx - yy)
    half, root = (xx + yy) / 2, math.hypot((xx - yy) / 2, yx)
    return (y, x), (math.sqrt(max(half - root, 0)), math.sqrt(half + root)), math.degrees(angle)


def seeds_of(depths: Sequence[int]) -> list[int]:
    """Voxels that nothing within two voxels is deeper than."""
    return [i for i, d in enumerate(depths) if d and d == max(depths[max(i - 2, 0) : i + 3])]


def basins_of(depths: Sequence[int]) -> list[int]:
    """The number of the seed that each voxel is reached from, from deep to shallow; 0 on membranes."""
    basins = [0] * len(depths)
    for number, seed in enumerate(seeds_of(depths), 1):
        basins[seed] = number
    for depth in range(max(depths), 0, -1):
        while grown := [
            (i, n) for i in range(len(depths)) if depths[i] == depth and not basins[i] and (n := _beside(basins, i))
        ]:
            for i, number in grown:
                basins[i] = number
    return basins


def segments_of(names: Iterable[str], edges: Iterable[tuple[str, str, float]], threshold: float) -> dict[str, str]:
    """The smallest name of everything that edges up to the threshold join."""
    segment = {name: name for name in names}
    for u, v, score in edges:
        if score <= threshold:
            low, high = sorted((segment[u], segment[v]))
            segment = {n: low if s == high else s for n, s in segment.items()}
    return segment


def _beside(basins: Sequence[int], i: int) -> int:
    return next((basins[j] for j in (i - 1, i + 1) if 0 <= j < len(basins) and basins[j]), 0)


def _places() -> list[tuple[int, int]]:
    return [(y, x) for y, line in enumerate(SECTION) for x, _ in enumerate(line)]


def _cell(place: tuple[int, int]) -> str:
    return SECTION[place[0]][place[1]]


def _colour(place: tuple[int, int]) -> str:
    return {"A": CELLS[0], "B": CELLS[1], "C": CELLS[3]}.get(_cell(place), "#e4eaef")


def _grid(left: float, top: float, edge: float, colours: dict[tuple[int, int], str]) -> list[str]:
    return [
        _box(left + x * edge, top + y * edge, edge - 1, edge - 1, f'rx="2" fill="{colour}" fill-opacity=".7"')
        for (y, x), colour in colours.items()
    ]


def _box(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style}/>'


def _middle(left: float, top: float, edge: float, place: tuple[float, float]) -> Point:
    return left + (place[1] + 0.5) * edge, top + (place[0] + 0.5) * edge


def _line(a: Point, b: Point, colour: str, width: float, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    ends = f'x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"{dashed}/>'


def _arrow(a: Point, b: Point, colour: str) -> str:
    along = math.atan2(b[1] - a[1], b[0] - a[0])
    wings = " ".join(
        f"{b[0] - 11 * math.cos(along + s):.1f},{b[1] - 11 * math.sin(along + s):.1f}" for s in (0.4, -0.4)
    )
    return _line(a, b, colour, 3) + f'<polygon points="{b[0]:.1f},{b[1]:.1f} {wings}" fill="{colour}"/>'


def _text(x: float, y: float, words: str, colour: str, anchor: str = "start") -> str:
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{words}</text>'


def _notes(x: float, y: float, notes: Sequence[tuple[str, str]]) -> list[str]:
    parts = []
    for i, (words, colour) in enumerate(notes):
        parts.append(f'<circle cx="{x - 12:.0f}" cy="{y + 30 * i - 5:.0f}" r="4" fill="{colour}"/>')
        parts.append(_text(x, y + 30 * i, words, INK))
    return parts


def _svg(width: int, height: int, parts: Sequence[str], title: str) -> str:
    card = f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>'
    view = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="14"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {view}>'
    return "\n".join([head, f"<title>{title}</title>", card, *parts, "</svg>\n"])


SECTION_CELLS = {letter: {p for p in _places() if _cell(p) == letter} for letter in "ABC"}
DRAWINGS: dict[str, Callable[[], str]] = {
    "lsds": lsds,
    "affinities": affinities,
    "watershed": watershed,
    "agglomeration": agglomeration,
    "blocks": blocks,
}

if __name__ == "__main__":
    main()
