"""A MongoDB server that speaks TLS only, with a certificate of an authority of one's own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lsdflow_contract.errors import StoreUnreachable
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.graph import RagNodes
from lsdflow_runtime.store.stores import open_store, problems_of_store
from lsdflow_segment.cli import app

NODES = RagNodes(np.array([1, 2, 3], np.uint64), np.arange(9.0).reshape(3, 3), np.array([5, 6, 7], np.uint64))
Make = Callable[[str], Experiment]


def _openssl(*arguments: str, cwd: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate authority of our own, and a server certificate for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("certificates")
    make = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    _openssl(*make, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority", cwd=folder)
    request = ("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "server.csr")
    _openssl(*request, "-subj", "/CN=127.0.0.1", cwd=folder)
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    sign = ("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
    _openssl(*sign, "-days", "2", "-extfile", "names", "-out", "server.pem", cwd=folder)
    (folder / "both.pem").write_text((folder / "server.pem").read_text() + (folder / "server.key").read_text())
    return folder


@pytest.fixture(scope="module")
def tls_mongod(
    mongod_for_tests: ModuleType, certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A mongod that refuses connections without TLS."""
    options = ("--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(certificates / "both.pem"))
    trusted = {"tls": True, "tlsCAFile": str(certificates / "ca.pem")}
    folder = tmp_path_factory.mktemp("tls")
    with mongod_for_tests.running_mongod(folder, options=options, client_options=trusted) as server:
        yield server


@pytest.fixture
def make_experiment(tls_mongod: Any, tmp_path: Path) -> Make:
    """An experiment whose URI has these options."""

    def make(options: str) -> Experiment:
        root = tmp_path / "experiment"
        database = tmp_path.name[:60]
        file = tls_mongod.uri_file(database, tmp_path, options=options)
        root.mkdir()
        store = ['engine = "mongo"', f'uri_file = "{file}"', f'database = "{database}"', "retry_s = 2"]
        (root / "experiment.toml").write_text("\n".join(["[store]", *store]))
        return load_experiment(root)

    return make


@pytest.mark.proves("DBS-01", "DBS-03")
def test_a_full_uri_with_the_authority_connects_and_stores(make_experiment: Make, certificates: Path) -> None:
    experiment = make_experiment(f"tls=true&tlsCAFile={certificates / 'ca.pem'}&retryWrites=false")
    assert problems_of_store(experiment) == []
    store = open_store(experiment)
    store.begin("watershed", "k")
    store.rag.write_nodes("k", 0, NODES)
    assert store.rag.read_nodes("k", 0).id.tolist() == [1, 2, 3]
    assert CliRunner().invoke(app, ["validate", "-e", str(experiment.path)]).exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [("", "TLS"), ("tls=true", "certificate"), ("tls=true&tlsAllowInvalidHostnames=true", "certificate")],
)
def test_without_tls_or_without_the_authority_it_is_exit_69_at_once_and_the_password_is_not_printed(
    make_experiment: Make, options: str, message: str
) -> None:
    experiment = make_experiment(options)
    password = experiment.resolve(experiment.store.uri_file or "").read_text().split("@")[0].rsplit(":", 1)[1]
    started = time.monotonic()
    done = CliRunner().invoke(app, ["validate", "-e", str(experiment.path)])
    assert time.monotonic() - started < 10
    assert done.exit_code == 69
    with pytest.raises(StoreUnreachable) as raised:
        open_store(experiment).rag.write_nodes("k", 0, NODES)
    assert time.monotonic() - started < 30
    for text in (done.output, raised.value.message()):
        assert message in text
        assert "does not answer" in text
        assert password not in text
