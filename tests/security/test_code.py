"""No code of lsdflow runs text, reads a pickle or calls a shell: a lint, which is itself tried on bad snippets."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = ("stages/", "containers/", "compose/", "slurm_wrappers/", "tests/cluster/bed/")
BAD = [
    "eval(text)",
    "exec(text)",
    "compile(text, 'f', 'exec')",
    "__import__(name)",
    "import builtins\nbuiltins.eval(text)",
    "import builtins as b\nb.exec(text)",
    "from builtins import eval as e\ne(text)",
    "import pickle",
    "import pickle as safe",
    "from pickle import loads",
    "from multiprocessing.reduction import pickle",
    "def f():\n    import dill",
    "import cloudpickle",
    "import marshal",
    "import shelve",
    "from joblib import load",
    "import numpy as np\nnp.load(path, allow_pickle=True)",
    "import numpy as np\nnp.load(path, allow_pickle=flag)",
    "import numpy as np\nnp.load(path, None, True)",
    "import numpy as np\nnp.load(path, **options)",
    "import h5py\nread(path, allow_pickle=True)",
    "import pandas as pd\npd.read_pickle(path)",
    "import torch\ntorch.load(path)",
    "import torch\ntorch.load(path, weights_only=False)",
    "from torch import load\nload(path, weights_only=safe)",
    "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)",
    "from yaml import unsafe_load as load\nload(text)",
    "import subprocess\nsubprocess.run(text, shell=True)",
    "from subprocess import Popen\nPopen(text, shell=flag)",
    "import subprocess\nsubprocess.getoutput(text)",
    "import os\nos.system(text)",
    "import os as o\no.popen(text)",
    "from os import system as s\ns(text)",
    "import os\nrun = os.system",
    "import asyncio\nasyncio.create_subprocess_shell(text)",
    "import jinja2\njinja2.Environment()",
    "from jinja2 import Environment\nEnvironment(autoescape=False)",
    "from jinja2 import Environment as E\nE(trim_blocks=True)",
    "from jinja2.sandbox import SandboxedEnvironment\nSandboxedEnvironment()",
    "import jinja2\njinja2.Template(text)",
    "import shutil\nshutil.unpack_archive(path)",
]
GOOD = [
    "import re\nre.compile(text)",
    "network.eval()",
    "import torch\ntorch.load(path, map_location='cpu', weights_only=True)",
    "import torch\ntorch.compile(network)",
    "import numpy as np\nnp.load(path, allow_pickle=False)\nnp.load(path)",
    "import yaml\nyaml.safe_load(text)",
    "import subprocess\nsubprocess.run(['ls', name], shell=False)",
    "import os\nos.execv(program, words)",
    "from jinja2 import Environment\nEnvironment(autoescape=True)",
    "import json\njson.loads(text)",
]


@pytest.mark.parametrize("text", BAD)
def test_the_lint_finds_what_it_is_for(code_lint: ModuleType, text: str) -> None:
    assert code_lint.findings(text)


@pytest.mark.parametrize("text", GOOD)
def test_the_lint_leaves_sound_code_alone(code_lint: ModuleType, text: str) -> None:
    assert code_lint.findings(text) == []


def test_no_code_of_lsdflow_runs_text_reads_pickles_or_asks_a_shell(code_lint: ModuleType, tracked: list[Path]) -> None:
    sources = [p for p in tracked if p.suffix == ".py" and p.relative_to(REPOSITORY).as_posix().startswith(FOLDERS)]
    assert len(sources) > 150
    found = [
        f"{path.relative_to(REPOSITORY)}:{what}" for path in sources for what in code_lint.findings(path.read_text())
    ]
    assert found == []
