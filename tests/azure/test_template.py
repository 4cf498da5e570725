"""The cluster template holds together: it parses, every variable is defined and used, and it renders as meant."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from lsdflow_launch.slurm.table import ClusterTable


@pytest.fixture(scope="module")
def text(azure: Path) -> str:
    return (azure / "templates" / "lsdflow.txt").read_text()


@pytest.fixture(scope="module")
def example(azure: Path) -> dict[str, str]:
    return json.loads((azure / "parameters.example.json").read_text())


@pytest.fixture(scope="module")
def nodes(cyclecloud: ModuleType, text: str, example: dict[str, str]) -> dict[str, dict[str, str]]:
    return cyclecloud.render(cyclecloud.parse(text), example)


def test_every_variable_is_defined_and_every_parameter_is_used(cyclecloud: ModuleType, text: str) -> None:
    template = cyclecloud.parse(text)
    assert cyclecloud.used_parameters(template) == set(cyclecloud.parameters(template))


def test_a_parameter_has_a_default_or_is_required_and_in_the_example(
    cyclecloud: ModuleType, text: str, example: dict[str, str]
) -> None:
    for name, section in cyclecloud.parameters(cyclecloud.parse(text)).items():
        assert ("DefaultValue" in section.values) != (section.values.get("Required") == "true"), name
        assert "DefaultValue" in section.values or name in example
    assert set(example) <= set(cyclecloud.parameters(cyclecloud.parse(text)))


def test_rendered_with_defaults_nothing_is_left_open(nodes: dict[str, dict[str, str]]) -> None:
    left = [(n, k, v) for n, values in nodes.items() for k, v in values.items() if re.search(r"\$|<[a-z]|[A-Z]+_IP", v)]
    assert left == []


def test_wrong_templates_and_undefined_variables_are_refused(
    cyclecloud: ModuleType, text: str, example: dict[str, str]
) -> None:
    for broken in (
        "[[node x]\n",
        "[cluster a]\n[[[volume b]]]\n",
        "[cluster a]\nno equals sign\n",
        "[cluster a]\nK=1\nK=2\n",
    ):
        with pytest.raises(ValueError, match="line"):
            cyclecloud.parse(broken)
    with pytest.raises(KeyError, match="NETAPP_IP"):
        cyclecloud.render(cyclecloud.parse(text.replace("$MountAddress", "$NETAPP_IP")), example)


@pytest.mark.proves("CLD-01")
def test_every_node_array_is_a_partition_of_its_own_with_a_limit(nodes: dict[str, dict[str, str]]) -> None:
    arrays = {name: values for name, values in nodes.items() if name != "scheduler"}
    assert {name: values["slurm.partition"] for name, values in arrays.items()} == {n: n for n in arrays}
    assert set(arrays) == {"cpu", "gpu", "gpulowprio"}
    for values in arrays.values():
        assert int(values["MaxCoreCount"]) > 0
        assert values["slurm.autoscale"] == "true"
        assert values["slurm.role"] == "execute"
        assert values["network-interface eth0:AssociatePublicIpAddress"] == "false"
    assert [n for n, v in arrays.items() if v["slurm.default_partition"] == "true"] == ["cpu"]


@pytest.mark.proves("CLD-01")
def test_only_gpulowprio_is_spot_and_its_price_is_the_parameter(nodes: dict[str, dict[str, str]]) -> None:
    assert [n for n, v in nodes.items() if v["Interruptible"] == "true"] == ["gpulowprio"]
    assert nodes["gpulowprio"]["MaxPrice"] == "-1"


def test_gpu_machines_are_gpu_machines_and_none_is_retired(nodes: dict[str, dict[str, str]]) -> None:
    assert re.match(r"Standard_N[CDV]", nodes["gpu"]["MachineType"])
    assert re.match(r"Standard_N[CDV]", nodes["gpulowprio"]["MachineType"])
    assert re.match(r"Standard_[DF]\d+", nodes["cpu"]["MachineType"])
    for values in nodes.values():  # the NC, NCv2, NCv3, ND and NV series of old
        assert not re.match(r"Standard_(NC\d+r?s?(_v[23])?|ND\d+r?s|NV\d+(_Promo)?)$", values["MachineType"])


def test_every_node_runs_the_specs_that_exist_at_the_projects_version(
    azure: Path, nodes: dict[str, dict[str, str]]
) -> None:
    project = (azure / "project.ini").read_text()
    version = re.search(r"^version = (.+)$", project, re.MULTILINE).group(1)
    specs = {p.name for p in (azure / "specs").iterdir()}
    for name, values in nodes.items():
        own = {
            k.removeprefix("cluster-init lsdflow:").rstrip(":") for k in values if k.startswith("cluster-init lsdflow")
        }
        assert own == {f"default:{version}", f"{'scheduler' if name == 'scheduler' else 'execute'}:{version}"}
        assert {o.split(":")[0] for o in own} <= specs


def test_the_database_is_on_the_scheduler_alone_on_a_disk_that_stays(nodes: dict[str, dict[str, str]]) -> None:
    scheduler = nodes["scheduler"]
    assert scheduler["volume mongo:Persistent"] == "true"
    mount = scheduler["volume mongo:Mount"]
    assert scheduler[f"cyclecloud.mounts.{mount}.mountpoint"] == scheduler["lsdflow.mongo.disk"]
    assert not [k for n, v in nodes.items() if n != "scheduler" for k in v if "mongo" in k]
    assert not any("password" in key.lower() for values in nodes.values() for key in values)


def test_lines_for_slurm_conf_are_well_formed_and_name_no_partition(nodes: dict[str, dict[str, str]]) -> None:
    lines = [line for line in nodes["scheduler"]["slurm.additional.config"].splitlines() if not line.startswith("#")]
    settings = dict(line.split("=", 1) for line in lines)
    assert len(settings) == len(lines)
    assert not {"PartitionName", "NodeName"} & set(settings)  # a second line for a partition ends slurmctld
    assert int(settings["SlurmdTimeout"]) < 300
    assert settings["JobRequeue"] == "1"
    assert settings["PreemptMode"] == "OFF"


def test_settings_that_scripts_read_are_set_by_the_template(azure: Path, nodes: dict[str, dict[str, str]]) -> None:
    for spec, names in (("default", list(nodes)), ("scheduler", ["scheduler"])):
        scripts = "".join(p.read_text() for p in (azure / "specs" / spec).rglob("*.sh"))
        read = set(re.findall(r"\(setting ([a-z_.]+)\)", scripts))
        assert read
        assert all(read <= set(nodes[name]) for name in names)


def test_blobs_of_the_project_are_the_packages_that_scripts_install(azure: Path) -> None:
    versions = dict(
        re.findall(r"^(\w+)_VERSION=(.+)$", (azure / "specs/default/cluster-init/files/packages.env").read_text(), re.M)
    )
    blobs = re.search(r"^Files = (.+)$", (azure / "project.ini").read_text(), re.MULTILINE).group(1).split(", ")
    assert set(blobs) == {
        f"apptainer_{versions['APPTAINER']}_amd64.deb",
        f"mongodb-org-server_{versions['MONGOD']}_amd64.deb",
    }


def test_partitions_are_those_of_the_example_settings_of_the_wrappers(
    azure: Path, nodes: dict[str, dict[str, str]]
) -> None:
    settings = (azure.parent / "example.settings.env").read_text()
    names = set(re.findall(r"^(?:# ?)?\w*PARTITION\w*='(\w+)'", settings, re.MULTILINE))
    assert names
    assert names <= set(nodes)


def test_nothing_listens_on_all_addresses_and_no_command_writes_through_sudo(azure: Path) -> None:
    for path in azure.rglob("*"):
        if path.is_file() and "blobs" not in path.parts:
            text = path.read_text()
            assert "0.0.0.0" not in text, path
            assert "bind_ip_all" not in text, path
            assert not re.search(r"sudo (cat|echo)[^\n|]*>", text), path


def test_the_settings_of_the_readme_are_valid_and_name_partitions_that_exist(
    azure: Path, nodes: dict[str, dict[str, str]]
) -> None:
    readme = (azure / "README.md").read_text()
    tables = tomllib.loads(re.search(r"```toml\n(.+?)```", readme, re.DOTALL).group(1))
    cluster = ClusterTable.model_validate(tables["cluster"])
    chosen = {cluster.partition_cpu, cluster.partition_gpu, cluster.predict.partition, cluster.predict.worker_partition}
    assert chosen <= set(nodes)
    assert {ClusterTable().partition_cpu, ClusterTable().partition_gpu} <= set(nodes)
    assert nodes[cluster.predict.partition]["Interruptible"] == "false"  # no coordinator on spot machines
    assert tables["store"]["uri_file"].startswith(nodes["cpu"]["lsdflow.mount.point"] + "/")


def test_the_readme_names_parameters_packages_and_sizes_that_exist(
    azure: Path, cyclecloud: ModuleType, text: str, nodes: dict[str, dict[str, str]]
) -> None:
    readme = (azure / "README.md").read_text()
    parameters = cyclecloud.parameters(cyclecloud.parse(text))
    named = set(re.findall(r"`((?:Gpu|Spot|Cpu|Mount|Lab|Additional)[A-Z]\w+)`", readme))
    assert named
    assert named <= set(parameters)
    assert {values["MachineType"] for values in nodes.values()} <= set(re.findall(r"Standard_\w+", readme))
    for blob in re.search(r"^Files = (.+)$", (azure / "project.ini").read_text(), re.MULTILINE).group(1).split(", "):
        assert blob in readme
    assert "What was not run on Azure" in readme


@pytest.mark.proves("CLD-05")
def test_every_command_of_the_page_is_a_command_of_bash_and_the_first_line_says_what_was_never_run(azure: Path) -> None:
    readme = (azure / "README.md").read_text()
    assert "Nothing on this page has run on Azure" in readme.split("\n\n")[1]
    blocks = [block for block in readme.split("```")[1::2] if block.startswith("\n")]
    commands = {line.split()[1] for block in blocks for line in block.splitlines() if line.startswith("az ")}
    assert {"login", "group", "network", "vm", "role", "netappfiles", "storage"} <= commands
    for block in blocks:
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
