"""The files of the profile `monitoring`: well-formed, pinned, on loopback, without passwords in them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
COMPOSE = REPOSITORY / "compose"
GRAFANA = COMPOSE / "monitoring" / "grafana"


def _dashboard() -> dict[str, Any]:
    return dict(json.loads((GRAFANA / "dashboards" / "stages.json").read_text()))


def _yaml(path: str) -> dict[str, Any]:
    return dict(yaml.safe_load((COMPOSE / path).read_text()))


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = _dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 15
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


def test_every_panel_asks_the_data_source_that_is_provisioned() -> None:
    (source,) = _yaml("monitoring/grafana/provisioning/datasources/prometheus.yml")["datasources"]
    services = _yaml("compose.monitoring.yaml")["services"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services
    asked = {target["datasource"]["uid"] for panel in _dashboard()["panels"] for target in panel["targets"]}
    assert asked == {source["uid"]}
    (provider,) = _yaml("monitoring/grafana/provisioning/dashboards/lsdflow.yml")["providers"]
    folders = {volume.split(":")[1] for volume in services["grafana"]["volumes"]}
    assert provider["options"]["path"] in folders


def test_the_dashboard_shows_what_people_steer_by() -> None:
    expressions = " ".join(target["expr"] for panel in _dashboard()["panels"] for target in panel["targets"])
    for metric in ("work_done", "work_per_second", "work_eta_seconds", "blocks_failed", "block_seconds", "loss"):
        assert f"lsdflow_{metric}" in expressions
    for metric in ("block_retries_total", "resident_bytes", "gpu_reserved_bytes", 'unit="iteration"'):
        assert metric in expressions


def test_charts_say_how_they_show_their_legend_and_leave_nothing_to_defaults() -> None:
    charts = [panel["options"] for panel in _dashboard()["panels"] if panel["type"] == "timeseries"]
    assert len(charts) >= 10
    for chart in charts:
        assert chart["legend"] == {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
        assert chart["tooltip"] == {"mode": "multi", "sort": "none"}


def test_promtool_takes_the_configuration_of_prometheus(programs: Path) -> None:
    words = [programs / "promtool", "check", "config", "--syntax-only", COMPOSE / "monitoring" / "prometheus.yml"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (job,) = _yaml("monitoring/prometheus.yml")["scrape_configs"]
    assert job["honor_labels"] is True
    assert job["static_configs"] == [{"targets": ["node-exporter:9100"]}]


def test_services_are_hardened_and_answer_on_loopback_alone() -> None:
    services = _yaml("compose.monitoring.yaml")["services"]
    assert set(services) == {"node-exporter", "prometheus", "grafana"}
    for name, service in services.items():
        assert service["profiles"] == ["monitoring"], name
        assert service["read_only"] is True, name
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"]), name
        assert service["user"], name
        assert re.search(r":v?\d+\.\d+\.\d+\}$", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        writable = [v for v in service["volumes"] if not (isinstance(v, dict) and v["read_only"]) and ":ro" not in v]
        assert writable == (["prometheus-data:/prometheus"] if name == "prometheus" else []), name


def test_the_password_of_grafana_is_a_file_and_is_in_no_other_file() -> None:
    compose = _yaml("compose.monitoring.yaml")
    environment = compose["services"]["grafana"]["environment"]
    assert environment["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana_password"
    assert [name for name in environment if "PASSWORD" in name] == ["GF_SECURITY_ADMIN_PASSWORD__FILE"]
    assert compose["services"]["grafana"]["secrets"] == list(compose["secrets"]) == ["grafana_password"]
