"""Finds calls in Python text that would run code or read a pickle from what a user or a file says.

Names are followed through imports ("from os import system as s"). Methods called eval, as networks have, are no eval.
multiprocessing (and daisy) pickle our own objects between a process and its children: that is no data of a user.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
PICKLES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn"} | {
    "asyncio.create_subprocess_shell"
}
UNSAFE_READERS = {"yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "pandas.read_pickle"}
UNPACKERS = {"shutil.unpack_archive"}


def findings(text: str) -> list[str]:
    """What is forbidden in a Python text, as "line: what"."""
    tree = ast.parse(text)
    names = dict(_imports(tree))
    found = [(node.lineno, f"imports {name}") for node, name in _imported_modules(tree) if name in PICKLES]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += [(node.lineno, what) for what in _of_call(node, names)]
        elif isinstance(node, ast.Name | ast.Attribute):
            called = _dotted(node, names)
            found += [(node.lineno, called)] if called in SHELLS else []
    return [f"{line}: {what}" for line, what in sorted(set(found))]


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _imported_modules(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node, node.module.split(".")[0]
            yield from ((node, alias.name) for alias in node.names if alias.name in PICKLES)


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The full name of what is called, "" where it is no plain name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _of_call(call: ast.Call, names: dict[str, str]) -> Iterator[str]:
    called = _dotted(call.func, names).removeprefix("builtins.")
    if called in RUNS_TEXT | UNSAFE_READERS | UNPACKERS or called.endswith(".read_pickle"):
        yield called
    yield from _wrong_options(call, called)


def _wrong_options(call: ast.Call, called: str) -> Iterator[str]:
    given = {word.arg: word.value for word in call.keywords}
    if not _is_false(given.get("shell")):
        yield "shell"
    if not _is_false(given.get("allow_pickle")):
        yield "allow_pickle"
    if called == "numpy.load" and len(call.args) > 2:
        yield "options of numpy.load without names"
    if called == "torch.load" and not _is_true(given.get("weights_only")):
        yield "torch.load without weights_only=True"
    if called == "jinja2.Template" or (
        called.startswith("jinja2.") and called.endswith("Environment") and not _is_true(given.get("autoescape"))
    ):
        yield f"{called} without autoescape=True"
    if None in given and called in {"numpy.load", "torch.load"}:
        yield f"{called} with options that are not seen here"


def _is_false(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is False)


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True
