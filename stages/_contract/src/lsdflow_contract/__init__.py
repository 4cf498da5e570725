"""lsdflow-contract: what the data looks like. numpy and pydantic only; no engine, no scheduler, no database."""

from importlib.metadata import version

CONTRACT_VERSION = version("lsdflow-contract")
CONTRACT_MAJOR = int(CONTRACT_VERSION.split(".", maxsplit=1)[0])
