"""lsdflow-contract: the formats of all data. Needs numpy and pydantic only; no engine, scheduler or database."""

from importlib.metadata import version

from lsdflow_contract.address_space import refuse_small_address_space

refuse_small_address_space()
CONTRACT_VERSION = version("lsdflow-contract")
# Artefacts of another major are refused. Keys hash a number of their own: a new major can leave them as they are.
CONTRACT_MAJOR = CONTRACT_VERSION.partition(".")[0]
KEY_MAJOR = 1
