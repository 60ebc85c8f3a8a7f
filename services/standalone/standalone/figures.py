"""The demo's own arithmetic: what the report must say, computed from the same file by other code than the agent's."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Final

_CENT: Final = Decimal("0.01")
_NUMBER: Final = re.compile(r"(?<![\w.])\d{1,3}(?:[,\u202f' ]\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?")


def expected(orders: Path) -> dict[str, Decimal]:
    """What must be in the report, by name: total revenue, each region's, the best product's (its name is the key)."""
    regions: dict[str, Decimal] = defaultdict(Decimal)
    products: dict[str, Decimal] = defaultdict(Decimal)
    with orders.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            revenue = int(row["quantity"]) * Decimal(row["unit_price"])
            regions[row["region"]] += revenue
            products[row["product"]] += revenue
    best = max(products, key=lambda product: products[product])
    return {"total": sum(regions.values(), Decimal(0)), **regions, best: products[best]}


def missing(report: str, figures: Mapping[str, Decimal]) -> list[str]:
    """The figures that a report does not hold (to the cent), as `name: value`; and names it does not mention."""
    numbers = {Decimal(re.sub(r"[,\u202f' ]", "", found)).quantize(_CENT, ROUND_HALF_UP) for found in _NUMBER.findall(report)}
    wrong = [f"{name}: {value:.2f}" for name, value in figures.items() if value.quantize(_CENT, ROUND_HALF_UP) not in numbers]
    return wrong + [f"{name} is not mentioned" for name in figures if name.lower() not in report.lower()]
