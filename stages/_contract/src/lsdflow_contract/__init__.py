"""lsdflow-contract: the formats of all data. Needs numpy and pydantic only; no engine, scheduler or database."""

from importlib.metadata import version

from lsdflow_contract.address_space import refuse_small_address_space

refuse_small_address_space()
CONTRACT_VERSION = version("lsdflow-contract")
# Contract 2 moved arrays into folders of results. Results of contract 1 can be read, and keys of passes are the same.
READ_MAJORS = (1, 2)
KEY_MAJOR = 1
