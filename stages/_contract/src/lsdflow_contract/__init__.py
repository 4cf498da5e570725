"""lsdflow-contract: what the data looks like. numpy and pydantic only; no engine, no scheduler, no database."""

from importlib.metadata import version

CONTRACT_VERSION = version("lsdflow-contract")
# Contract 2 moved arrays into folders of results; what contract 1 left is read, and keys of passes are the same.
READ_MAJORS = (1, 2)
KEY_MAJOR = 1
