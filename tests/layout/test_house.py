"""The house stays as it was drawn: same files in every stage, one name per stage, imports one way, short functions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsdflow_contract.experiment import GPU_STAGES, STAGES, TRAININGS

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = (
    *("_contract", "_command", "_runtime", "_network", "_metrics", "_descriptors"),
    *("_training", "_importers", "_tensorflow", "_launch", "_view"),
)

# Who may import whom inside the house; a stage may import every package but _launch (and training never _runtime).
MAY_IMPORT = {
    "_contract": set(),
    "_command": {"_contract"},
    "_runtime": {"_contract", "_command"},
    "_network": {"_contract"},
    "_metrics": {"_contract"},
    "_descriptors": {"_contract"},
    "_training": {"_contract", "_command", "_network"},
    "_importers": {"_contract", "_command", "_network", "_training"},
    "_tensorflow": {"_contract", "_command", "_network", "_training", "_importers"},
    "_launch": {"_contract", "_command"},
    "_view": {"_contract", "_command", "_runtime"},
    **{
        s: {"_contract", "_command", "_runtime", "_network", "_metrics", "_descriptors"}
        for s in STAGES
        if s not in TRAININGS
    },
    **{s: {"_contract", "_command", "_network", "_training", "_importers"} for s in TRAININGS},
}
# One import place for Python users, who have arrays: `import lsdflow`. No package of the house imports it.
PYTHON_API = REPOSITORY / "stages" / "_launch" / "src" / "lsdflow" / "__init__.py"
ONLY_IN_RUNTIME = {"daisy", "zarr", "tensorstore", "pymongo", "pyarrow"}
CORE_FORBIDDEN = {"logging", "pathlib", "os", "subprocess", "typer", "pymongo", "daisy", "zarr"}


def _import_name(folder: str) -> str:
    return "lsdflow_" + folder.lstrip("_").replace("-", "_")


def _sources(folder: str) -> Iterator[Path]:
    yield from sorted((REPOSITORY / "stages" / folder / "src").rglob("*.py"))


def _all_sources() -> list[Path]:
    return [path for folder in (*SHARED, *STAGES) for path in _sources(folder)]


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def _project(folder: str) -> dict:
    return tomllib.loads((REPOSITORY / "stages" / folder / "pyproject.toml").read_text())


def test_the_stage_folders_are_the_stages_and_the_shared_packages() -> None:
    found = {p.name for p in (REPOSITORY / "stages").iterdir() if p.is_dir()}
    assert found == {*STAGES, *SHARED}


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_holds_the_same_files(stage: str) -> None:
    folder = REPOSITORY / "stages" / stage
    package = folder / "src" / _import_name(stage)
    wanted = [folder / n for n in ("pyproject.toml", "README.md", "CHANGELOG.md")]
    wanted += [package / n for n in ("__init__.py", "cli.py", "config.py", "stage.py")]
    locks = ("cpu.lock", "cuda.lock") if stage in GPU_STAGES else ("requirements.lock",)
    wanted += [folder / n for n in locks]
    assert [str(p.relative_to(REPOSITORY)) for p in wanted if not p.is_file()] == []


@pytest.mark.parametrize("stage", STAGES)
def test_one_word_names_a_stage_everywhere(stage: str) -> None:
    project = _project(stage)["project"]
    assert project["name"] == f"lsdflow-{stage}"
    assert set(project["scripts"]) == {stage}
    readme = (REPOSITORY / "stages" / stage / "README.md").read_text()
    assert f"{stage} run" in readme, "the README needs an example"
    assert (REPOSITORY / "tests" / "stages" / stage).is_dir()


@pytest.mark.parametrize("folder", [*SHARED, *STAGES])
def test_a_package_says_why_it_exists_and_what_changed(folder: str) -> None:
    for name in ("README.md", "CHANGELOG.md"):
        assert (REPOSITORY / "stages" / folder / name).read_text().strip()
    version = _project(folder)["project"]["version"]
    assert version in (REPOSITORY / "stages" / folder / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("folder", [*SHARED, *STAGES])
def test_imports_go_one_way(folder: str) -> None:
    allowed = {_import_name(name) for name in MAY_IMPORT[folder]} | {_import_name(folder)}
    for path in set(_sources(folder)) - {PYTHON_API}:
        own = {name for name in _imported(path) if re.match(r"lsdflow(_|$)", name)}
        assert own <= allowed, f"{path.relative_to(REPOSITORY)} imports {sorted(own - allowed)}"


def test_the_python_api_imports_of_stages_only_what_it_calls_and_never_a_training() -> None:
    """At the top it imports no stage, so that it works where only some of them are installed."""
    top = {
        node.module.split(".")[0] for node in ast.parse(PYTHON_API.read_text()).body if isinstance(node, ast.ImportFrom)
    }
    assert {name for name in top if name.startswith("lsdflow")} == {"lsdflow_contract", "lsdflow_command"}
    assert not {"lsdflow_training", "lsdflow_train_lsd", "lsdflow_train_acrlsd"} & _imported(PYTHON_API)


def test_an_experiment_ends_in_the_file_of_its_stage() -> None:
    # graph_import is a command like a stage; the run of evaluate reads every stage and has a file of its own.
    may, of_evaluate = {"stage.py", "cli.py", "graph_import.py"}, {"evaluation.py", "inputs.py", "passes.py"}
    files = [path for stage in STAGES if stage not in TRAININGS for path in _sources(stage)]
    given = {path for path in files if re.search(r": Experiment\b", path.read_text())}
    assert {path.name for path in given} >= {"stage.py"}
    found = {path for path in given if path.name not in may | (of_evaluate if "evaluate" in path.parts else set())}
    assert not found, "give what is below a stage a layout, a table or a task"


def test_engines_of_storage_and_scheduling_are_imported_in_runtime_only() -> None:
    outside = [p for p in _all_sources() if "/_runtime/" not in str(p) and _imported(p) & ONLY_IN_RUNTIME]
    assert [str(p.relative_to(REPOSITORY)) for p in outside] == []


def test_every_dependency_is_pinned_exactly_or_local() -> None:
    loose = []
    for folder in (*SHARED, *STAGES):
        project = _project(folder)["project"]
        optional = [name for names in project.get("optional-dependencies", {}).values() for name in names]
        for requirement in [*project["dependencies"], *optional]:
            if not re.match(r"^(lsdflow-[a-z-]+|[A-Za-z0-9._-]+(\[[a-z,-]+\])?==[^,;*]+)$", requirement):
                loose.append(f"{folder}: {requirement}")
    assert loose == []


def test_locks_pin_with_hashes_and_name_no_address() -> None:
    locks = [*(REPOSITORY / "stages").glob("*/*.lock"), *(REPOSITORY / "tests").rglob("*.lock")]
    assert len(locks) >= 14
    for lock in locks:
        text = lock.read_text()
        assert "://" not in text, lock
        pins = [line for line in text.splitlines() if re.match(r"^[a-z0-9]", line)]
        assert pins, lock
        assert all("==" in pin for pin in pins), lock
        assert text.count("--hash=sha256:") >= len(pins), lock


def _pinned(folder: str) -> set[str]:
    """What a package needs: the pins of its pyproject.toml, and of the local packages that it needs."""
    names: set[str] = set()
    for requirement in _project(folder)["project"]["dependencies"]:
        own = re.fullmatch(r"lsdflow-([a-z-]+)==.*", requirement)
        names |= _pinned(f"_{own[1]}") if own else {requirement}
    return {re.sub(r"\[.*?\]", "", name) for name in names}


def test_every_dependency_is_in_the_table_of_the_page() -> None:
    table = (REPOSITORY / "docs" / "decisions.md").read_text().partition("## Dependencies")[2].partition("Avoided")[0]
    named = set(re.findall(r"[a-z0-9-]+", "".join(line.split("|")[1] for line in table.splitlines() if "|" in line)))
    needed = set()
    for folder in (*SHARED, *STAGES):
        project = _project(folder)["project"]
        optional = project.get("optional-dependencies", {}).values()
        for requirement in (*project["dependencies"], *(r for extra in optional for r in extra)):
            needed.add(re.split(r"[=\[]", requirement)[0].removesuffix("-cpu"))
    assert {name for name in needed if not name.startswith("lsdflow-")} - named == set()


OF_AN_OPTION = {"lsds.lock", "mlflow.lock"}
# It has an older torch: tests/containers/test_variants.py compares it with the lock for the CUDA of today.
OLDER_CUDA = "cuda12.lock"


@pytest.mark.parametrize("folder", [*SHARED, *STAGES])
def test_the_locks_of_a_package_have_what_it_and_the_local_ones_below_it_pin(folder: str) -> None:
    """Otherwise an environment made from a lock lacks a library, until a command needs it."""
    for lock in (REPOSITORY / "stages" / folder).glob("*.lock"):
        if lock.name not in OF_AN_OPTION:
            locked = set(re.findall(r"^([A-Za-z0-9._-]+==[^ ;+\\]+)", lock.read_text(), re.MULTILINE))
            lacks = _pinned(folder) - locked
            assert {pin for pin in lacks if lock.name != OLDER_CUDA or not pin.startswith("torch==")} == set(), (
                lock.name
            )


def test_locks_of_one_environment_agree_on_every_version() -> None:
    for locks in (
        ("_launch", *(stage for stage in STAGES if stage not in TRAININGS), "_view"),
        (*TRAININGS, "_training", "_tensorflow"),
    ):
        versions: dict[str, set[str]] = {}
        for stage in locks:
            for lock in {*(REPOSITORY / "stages" / stage).glob("*.lock")} - {
                REPOSITORY / "stages" / stage / OLDER_CUDA
            }:
                for name, version in re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", lock.read_text(), re.MULTILINE):
                    versions.setdefault(name, set()).add(version.removesuffix("+cpu"))
        assert {name: v for name, v in versions.items() if len(v) > 1} == {}


def test_the_cpu_lock_holds_no_cuda_wheels_and_the_cuda_lock_does() -> None:
    for stage in GPU_STAGES:
        folder = REPOSITORY / "stages" / stage
        assert "nvidia-" not in (folder / "cpu.lock").read_text()
        assert "nvidia-" in (folder / "cuda.lock").read_text()


def _functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in _all_sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def test_functions_are_short() -> None:
    sizes = [(n.end_lineno - n.lineno + 1, f"{p.relative_to(REPOSITORY)}:{n.name}") for p, n in _functions()]
    assert [s for s in sizes if s[0] > 60] == []
    lengths = sorted(s[0] for s in sizes)
    assert lengths[int(len(lengths) * 0.9)] <= 30


def test_files_are_short_and_say_what_they_do() -> None:
    for path in _all_sources():
        text = path.read_text()
        assert len(text.splitlines()) <= 400, path
        assert ast.get_docstring(ast.parse(text)), f"{path} needs a module docstring"


def test_public_functions_have_docstrings() -> None:
    bare = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.name}"
        for path, node in _functions()
        if not node.name.startswith("_") and not ast.get_docstring(node) and node.col_offset == 0
    ]
    assert bare == []


def test_nothing_dangerous_is_called() -> None:
    found = []
    for path in _all_sources():
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if name in {"eval", "exec", "print"}:
                found.append(f"{path}:{node.lineno} {name}")
            if isinstance(node, ast.Assert):
                found.append(f"{path}:{node.lineno} assert")
            if (
                isinstance(node, ast.keyword)
                and node.arg in {"shell", "allow_pickle"}
                and getattr(node.value, "value", None) is True
            ):
                found.append(f"{path}: {node.arg}=True")
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                found.append(f"{path}:{node.lineno} bare except")
        if {"pickle", "dill", "joblib", "cloudpickle"} & _imported(path):
            found.append(f"{path}: pickle")
    assert found == []


def test_no_test_changes_a_clock_for_the_other_threads_of_its_process() -> None:
    """Threads of pymongo never slept while `time.sleep` appended to a list: 21 GB, and the end of a CI run."""
    patched = re.compile(r"""setattr\(\s*([\w.]*\btime,|["']time\.)""")
    tests = (path for path in (REPOSITORY / "tests").rglob("*.py") if path != Path(__file__))
    assert [str(path.relative_to(REPOSITORY)) for path in tests if patched.search(path.read_text())] == []


def test_no_file_is_named_for_nothing() -> None:
    nameless = [p for p in _all_sources() if p.stem in {"utils", "util", "common", "helpers", "misc"}]
    assert nameless == []


def test_what_cannot_read_the_list_of_stages_has_what_make_stages_writes() -> None:
    command = [sys.executable, REPOSITORY / "containers" / "stages.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run make stages"
    assert {path.stem for path in (REPOSITORY / "slurm_wrappers").glob("*.sbatch")} == {*STAGES, "stage", "sweep"}


def test_make_reads_the_list_of_stages() -> None:
    command = ["make", "-n", "--always-make", "setup"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for environment, stages in (("blocks", set(STAGES) - set(TRAININGS)), ("training", set(TRAININGS))):
        (line,) = [line for line in done.stdout.splitlines() if f".venv/{environment}/" in line and " -e " in line]
        assert {name for name in re.findall(r"-e stages/(\S+)", line) if not name.startswith("_")} == stages


def test_no_committed_text_names_a_registry_host_or_a_path_of_a_machine() -> None:
    hosts = re.compile(
        r"(pypi\.org|pythonhosted|registry\.npmjs|download\.pytorch|deb\.debian)" + r"|/work/|/root/|/home/[a-z]"
    )
    done = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    committed = [REPOSITORY / name for name in done.stdout.split("\0") if name]
    assert len(committed) > 300
    for path in committed:
        if path.is_file() and path != Path(__file__):
            match = hosts.search(path.read_text(errors="replace"))
            assert match is None, f"{path.relative_to(REPOSITORY)}: {match}"
