"""Whether a report on orders.csv is right: computes every figure again and looks for it beside its name.

    python3 check_report.py ORDERS REPORT

Exit status 0: all figures are there. 1: some are missing or wrong, named on standard output (without the right values: a check is
not there to give the answer away).
"""

import csv
import re
import sys
from collections import defaultdict
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

CENT = Decimal("0.01")
NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?")


def figures(orders: Path) -> dict[str, Decimal]:
    """Name to value: "total", each region, each product."""
    found: dict[str, Decimal] = defaultdict(Decimal)
    with orders.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            revenue = int(row["quantity"]) * Decimal(row["unit_price"])
            for name in ("total", row["region"], row["product"]):
                found[name] += revenue
    return dict(found)


def numbers(text: str) -> set[Decimal]:
    """All numbers in a text, to the cent; 1,234.50 and 1234.5 are the same."""
    return {Decimal(number.replace(",", "")).quantize(CENT, ROUND_HALF_UP) for number in NUMBER.findall(text)}


def missing(report: str, expected: dict[str, Decimal]) -> list[str]:
    """Names whose figure stands neither in a line that names them nor in the line below such a one."""
    lines = report.splitlines()
    wrong = []
    for name, value in expected.items():
        near = [
            "\n".join(line for line in (lines[n], *lines[n + 1 : n + 3]) if line.strip())
            for n in range(len(lines))
            if name.lower() in lines[n].lower()
        ]
        if not any(value.quantize(CENT, ROUND_HALF_UP) in numbers(text) for text in near):
            wrong.append(name)
    return wrong


def main() -> int:
    orders, report = (Path(argument) for argument in sys.argv[1:3])
    if not report.is_file():
        print(f"{report} does not exist.")
        return 1
    expected = figures(orders)
    wrong = missing(report.read_text(encoding="utf-8", errors="replace"), expected)
    for name in wrong:
        print(
            f"The revenue of {name!r} (all its orders together) is missing from {report} or wrong."
            if name != "total"
            else "The total revenue is missing or wrong."
        )
    if not wrong:
        print(f"All {len(expected)} figures are right.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
