"""Charts as SVG: marks where they belong, hostile texts harmless, nothing hidden by missing values."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from lsdflow_evaluate.report.charts import MOST_POINTS, Axis, Line, line_chart, short

X_AXIS, Y_AXIS = Axis("threshold"), Axis("bits", from_zero=True)


def _line(x: list[float], y: list[float], name: str = "sum") -> Line:
    return Line(name, np.array(x), np.array(y), "s0")


def _by_class(svg: str, style: str) -> list[ET.Element]:
    return [e for e in ET.fromstring(svg).iter() if style in e.get("class", "").split()]


def _place_of_x(svg: str, value: str) -> float:
    """Horizontal place of the tick with this text."""
    return next(
        float(t.get("x", "")) for t in _by_class(svg, "tick") if t.text == value and t.get("text-anchor") == "middle"
    )


def test_the_chosen_threshold_is_at_its_place_on_the_axis() -> None:
    svg = line_chart("VOI", [_line([0.0, 0.5, 1.0], [2.0, 1.0, 3.0])], X_AXIS, Y_AXIS, chosen=0.4)
    (mark,) = _by_class(svg, "chosen")
    assert float(mark.get("x1", "")) == pytest.approx(_place_of_x(svg, "0.4"), abs=0.2)
    assert _by_class(svg, "chosen-text")[0].text == "chosen 0.4"


def test_a_higher_value_is_drawn_higher_and_a_later_one_further_right() -> None:
    svg = line_chart("VOI", [_line([0.0, 1.0], [1.0, 2.0])], X_AXIS, Y_AXIS)
    points = [tuple(map(float, p.split(","))) for p in _by_class(svg, "line")[0].get("points", "").split()]
    (x0, y0), (x1, y1) = points
    assert x1 > x0
    assert y1 < y0


def test_missing_values_are_left_out_and_the_rest_is_drawn() -> None:
    svg = line_chart("loss", [_line([0, 1, 2], [1.0, np.nan, 2.0]), _line([0, 1], [np.nan, np.nan])], X_AXIS, Y_AXIS)
    assert len(_by_class(svg, "dot")) == 2
    assert "nan" not in svg


def test_a_chart_without_values_says_so() -> None:
    assert "no values" in line_chart("loss", [_line([], [])], X_AXIS, Y_AXIS)


def test_constant_and_single_values_can_be_drawn() -> None:
    for axis in (Y_AXIS, Axis("loss", log=True)):
        ET.fromstring(line_chart("one", [_line([3.0], [2.0])], X_AXIS, axis))
        ET.fromstring(line_chart("same", [_line([1.0, 2.0], [2.0, 2.0])], X_AXIS, axis))


def test_hostile_names_stay_text() -> None:
    hostile = '"><script>alert(1)</script>'
    svg = line_chart(hostile, [_line([0.0, 1.0], [1.0, 2.0], hostile)], Axis(hostile), Axis(hostile))
    assert "<script" not in svg
    assert _by_class(svg, "title")[0].text == hostile


def test_long_curves_are_thinned_to_means_and_short_ones_left_alone() -> None:
    for points, drawn in ((10_000, MOST_POINTS), (50, 50)):
        svg = line_chart("loss", [_line(list(range(points)), [1.0] * points)], X_AXIS, Y_AXIS)
        line = next(e for e in _by_class(svg, "line") if e.get("points"))
        assert len(line.get("points", "").split()) == drawn
        assert len({point.split(",")[1] for point in line.get("points", "").split()}) == 1


@pytest.mark.parametrize(("value", "text"), [(0.25, "0.25"), (12, "12"), (3400, "3.4k"), (2e6, "2M"), (0, "0")])
def test_numbers_on_axes_are_short(value: float, text: str) -> None:
    assert short(value) == text
