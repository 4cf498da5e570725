"""All errors for users: what is wrong, where, what was wanted, what was found, the fix; and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


class StageError(Exception):
    """Base of all errors of lsdflow; `exit_code` is what the command returns to the shell."""

    exit_code = 70

    def __init__(
        self, what: str, *, where: object = "", wanted: object = "", found: object = "", fix: str = ""
    ) -> None:
        self.what = what
        self.where = str(where)
        self.wanted = str(wanted)
        self.found = str(found)
        self.fix = fix
        super().__init__(self.message())

    def message(self) -> str:
        """The full text: one line of what is wrong, then one indented line for each part that is known."""
        parts = [("where", self.where), ("wanted", self.wanted), ("found", self.found), ("fix", self.fix)]
        lines = [f"{name:>8}: {text}" for name, text in parts if text]
        return "\n".join([self.what, *lines])

    def as_dict(self) -> dict[str, str | int]:
        """The same parts as plain values, for `--json` and reports."""
        return {
            "error": type(self).__name__,
            "exit_code": self.exit_code,
            "what": self.what,
            "where": self.where,
            "wanted": self.wanted,
            "found": self.found,
            "fix": self.fix,
        }


class UsageError(StageError):
    """The command line is wrong."""

    exit_code = 2


class BadData(StageError):
    """An input exists and can be opened, but its content is wrong."""

    exit_code = 65


class NoVoxelSize(BadData):
    """The voxel size is neither in the metadata of a volume nor in the settings."""


class MissingInput(StageError):
    """An input that is needed does not exist."""

    exit_code = 66


class StoreUnreachable(StageError):
    """A database or shared storage does not answer."""

    exit_code = 69


class InternalError(StageError):
    """A fault of lsdflow itself."""

    exit_code = 70


class OutputConflict(StageError):
    """The output exists and was made by something else, with other parameters, or is being made by another run."""

    exit_code = 73


class StorageFailure(StageError):
    """Reading or writing failed in the file system (disk full, I/O error)."""

    exit_code = 74


class Interrupted(StageError):
    """Stopped by a signal or a time limit; run the same command again to resume."""

    exit_code = 75


class ContractMismatch(StageError):
    """Artefact and reader do not fit: other contract major, wrong kind of model, other model than trained with."""

    exit_code = 76


class PermissionDenied(StageError):
    """The user may not read or write there."""

    exit_code = 77


class ConfigError(StageError):
    """The experiment file is wrong."""

    exit_code = 78


class NotInstalled(ConfigError):
    """A setting needs a package that is not installed in the environment of the stage."""


class BlocksFailed(StageError):
    """The stage finished, but some blocks failed; they are listed."""

    exit_code = 79


def rebuilt(parts: Mapping[str, object]) -> StageError:
    """The error that another process described with `as_dict`: same class and texts.

    An unknown class becomes the first one with the same exit code, else InternalError.
    """
    kinds = list(_kinds(StageError))
    named = [kind for kind in kinds if kind.__name__ == parts.get("error")]
    same_code = [kind for kind in kinds if kind.exit_code == parts.get("exit_code")]
    kind = next(iter(named + same_code), InternalError)
    texts = {name: str(parts.get(name, "")) for name in ("where", "wanted", "found", "fix")}
    return kind(str(parts["what"]), **texts)


def unexpected(error: Exception, *, where: object = "", fix: str = "") -> StageError:
    """The error for a Python exception that nothing else converts: too little memory, or a fault of lsdflow."""
    if isinstance(error, MemoryError):
        fix = "more memory for this process, or fewer and smaller blocks at once (compute.workers, block_shape)"
        return ConfigError("not enough memory", where=where, found=error, fix=fix)
    return InternalError(f"internal: {type(error).__name__}: {error}", where=where, fix=fix)


def _kinds(base: type[StageError]) -> Iterator[type[StageError]]:
    """All classes below `base`, nearest first."""
    direct = base.__subclasses__()
    yield from direct
    for kind in direct:
        yield from _kinds(kind)


def together(problems: Sequence[StageError]) -> StageError:
    """One error that says all problems, with the exit code of the first; none is said twice."""
    texts = list(dict.fromkeys(problem.message() for problem in problems))
    if len(texts) == 1:
        return problems[0]
    error = StageError("\n".join([f"{len(texts)} problems", *texts]))
    error.exit_code = problems[0].exit_code
    return error


def problems_of(checks: Iterable[Callable[[], object]]) -> list[StageError]:
    """Run every check; returns the errors of lsdflow that the checks raise, in their order."""
    problems = []
    for check in checks:
        try:
            check()
        except StageError as error:
            problems.append(error)
    return problems
