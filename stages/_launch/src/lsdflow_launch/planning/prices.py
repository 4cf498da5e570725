"""prices.toml: the prices that the user pays; lsdflow contains no prices.

currency = "EUR"           # a label
months_kept = 3            # how long the results stay on the disk

[offers.on-demand]         # any number of offers, each is a column of the plan
cpu_hour = 0.05            # one core, one hour
gpu_hour = 3.0             # one GPU, one hour (in addition to the cores of its machine)
gb_month = 0.02            # 10^9 bytes, one month
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.model import StrictModel
from lsdflow_launch.planning.quantity import Quantity, total

NAME = "prices.toml"


class Offer(StrictModel):
    """The prices of one hour or month; None: not known."""

    cpu_hour: float | None = Field(default=None, ge=0, description="price of one core for one hour")
    gpu_hour: float | None = Field(default=None, ge=0, description="price of one GPU for one hour")
    gb_month: float | None = Field(default=None, ge=0, description="price of 10^9 bytes for one month")


class Prices(StrictModel):
    """prices.toml."""

    currency: str = Field(default="", description="name of the currency")
    months_kept: float = Field(default=1.0, ge=0, description="how many months the results are kept")
    offers: dict[str, Offer] = Field(description="one table for each offer")


def read_prices(experiment: Experiment, named: Path | None) -> Prices | None:
    """Return the user's prices: the named file, or prices.toml in the experiment's folder; None if there is none.

    Raises MissingInput (66) for a named file that does not exist, ConfigError (78) for a wrong one.
    """
    path = named or experiment.path.parent / NAME
    if not path.is_file():
        if named is not None:
            raise MissingInput("no such file of prices", where=named)
        return None
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("not a TOML file", where=path, found=error) from error
    return replace(experiment, path=path, tables={"prices": tables}).table("prices", Prices)


def cost_of(prices: Prices, hours: Mapping[str, Quantity], size_bytes: Quantity) -> dict[str, Quantity]:
    """Return, by offer, the cost of the remaining hours (cpu_hours, gpu_hours) and of the bytes of the results."""
    found = {}
    for name, offer in prices.offers.items():
        gb_months = size_bytes.times(prices.months_kept / 1e9)
        parts = (
            (hours["cpu_hours"], offer.cpu_hour),
            (hours["gpu_hours"], offer.gpu_hour),
            (gb_months, offer.gb_month),
        )
        found[name] = total(_priced(amount, price) for amount, price in parts)
    return found


def _priced(amount: Quantity, price: float | None) -> Quantity:
    if amount.value == 0 and not amount.at_least:
        return Quantity(0.0, "")
    return Quantity(None, "no price for a part of it") if price is None else amount.times(price)
