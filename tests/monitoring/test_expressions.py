"""Expressions of the dashboard and the documentation: Prometheus accepts them, stages report their metrics."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lsdflow_command.attempts import FOLDER
from lsdflow_command.metrics import GAUGES, StageMetrics
from lsdflow_command.monitoring import monitored
from lsdflow_command.progress import Progress

from .conftest import REPOSITORY, make_experiment

DASHBOARD = json.loads((REPOSITORY / "compose/monitoring/grafana/dashboards/stages.json").read_text())
PAGE = (REPOSITORY / "docs/monitoring.md").read_text()
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
QUERIES = [variable["query"]["query"] for variable in DASHBOARD["templating"]["list"]]
ALARMS = re.findall(r"`((?:deriv|lsdflow)[^`]* (?:==|>) [^`]*)`", PAGE)
EXPRESSIONS = [*(target["expr"] for target in TARGETS), *ALARMS]
# What Grafana puts in for its variables.
VARIABLES = {"$experiment": ".*", "$stage": "a|b", "$__rate_interval": "1m"}
MetricLabels = dict[str, set[str]]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> MetricLabels:
    """Labels by the name of the sample: of a stage of blocks and of a training, at work and ended."""
    found: MetricLabels = {}
    for unit in ("block", "iteration"):
        experiment = make_experiment(tmp_path_factory.mktemp(unit) / "e", every_s=0)
        (experiment.layout.stage_runs("watched") / FOLDER).mkdir(parents=True)
        with monitored("watched", experiment) as monitor, Progress("watched", 3, unit) as progress:
            progress.gauges.update(dict.fromkeys(GAUGES, 0.5) if unit == "iteration" else {})
            progress.advance(1, {"affs": 0.5} if unit == "iteration" else None, loss=0.75)
            metrics = StageMetrics(monitor)
            samples = [*_samples(metrics)]
        for name, labels in (*samples, *_samples(metrics)):
            found.setdefault(name, set()).update(labels)
    return found


def _samples(metrics: StageMetrics) -> Iterator[tuple[str, set[str]]]:
    for family in text_string_to_metric_families(metrics.text().decode()):
        yield from ((sample.name, set(sample.labels)) for sample in family.samples)


def test_prometheus_takes_every_expression(programs: Path, tmp_path: Path) -> None:
    assert len(EXPRESSIONS) >= 26
    filled = [re.sub("|".join(map(re.escape, VARIABLES)), lambda m: VARIABLES[m[0]], found) for found in EXPRESSIONS]
    assert "$" not in "".join(filled)
    rules = [{"record": f"expression_{number}", "expr": found} for number, found in enumerate(filled)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([programs / "promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *QUERIES])
def test_every_metric_and_label_that_is_asked_for_is_reported_by_stages(
    reported: MetricLabels, expression: str
) -> None:
    names = re.findall(r"lsdflow_\w+", expression)
    assert names
    assert set(names) <= set(reported)
    known = set.union(*(reported[name] for name in names))
    matched = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", expression)
    grouped = [
        label for some in re.findall(r"\b(?:by|ignoring|on) \(?([\w, ]+)\)", expression) for label in some.split(", ")
    ]
    variables = re.findall(r"label_values\(\w+, (\w+)\)", expression)
    assert {*matched, *grouped, *variables} <= known


@pytest.mark.parametrize(
    "target", [target for target in TARGETS if target["legendFormat"]], ids=lambda t: t["expr"][:40]
)
def test_legends_name_labels_that_are_left(target: dict[str, str]) -> None:
    (first, *_) = re.findall(r"\bby \(([\w, ]+)\)", target["expr"])
    assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= {*first.split(", ")} - {"le"}


def test_the_table_of_the_documentation_has_every_metric_and_no_other(reported: MetricLabels) -> None:
    rows = re.findall(r"^\| (`[a-z_`, {}]+`) \|", PAGE, re.MULTILINE)
    documented = {f"lsdflow_{name}" for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert documented == {re.sub(r"(seconds)_(?:bucket|sum|count)$", r"\1", name) for name in reported}
