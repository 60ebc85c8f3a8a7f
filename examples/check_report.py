"""Whether a report on orders.csv is right: computes every figure again and compares it with what the report says beside its name.

    python3 check_report.py ORDERS REPORT

Exit status 0: the total and the revenue of each region and product are there, and nothing else is said of them. 1: what is missing or wrong
is named on standard output (without the right values: a check is not there to give the answer away).
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
    return {name: value.quantize(CENT, ROUND_HALF_UP) for name, value in found.items()}


def numbers(text: str) -> list[Decimal]:
    """All numbers in a text; 1,234.50 and 1234.5 are the same."""
    return [Decimal(number.replace(",", "")) for number in NUMBER.findall(text)]


def problems(report: str, expected: dict[str, Decimal]) -> list[str]:
    """What is wrong with a report, for whoever has to correct it.

    A number belongs to the name in its own line; where that has none, to the name in the last line before it that has one.
    """
    said: dict[str, list[Decimal]] = defaultdict(list)
    heading = ""
    for line in report.splitlines():
        named = [name for name in expected if re.search(rf"\b{re.escape(name)}\b", line, re.IGNORECASE)]
        found = numbers(line)
        if found and len(named) > 1:
            return [f"A line with numbers must be about one thing, not {', '.join(named)}: {line.strip()!r}"]
        if len(named) == 1:
            heading = named[0]
        elif line.lstrip().startswith("#"):
            heading = ""
        if heading:
            said[heading] += found
    wrong = []
    for name, value in expected.items():
        what = "The total revenue" if name == "total" else f"The revenue of {name!r}, all its orders together,"
        others = [number for number in said[name] if number != value]
        if value not in said[name]:
            wrong.append(f"{what} is missing or wrong{f' (the report says {others[0]})' if others else ''}.")
        elif others:
            wrong.append(f"The report says {others[0]} of {name!r} as well, which is not its revenue.")
    return wrong


def main() -> int:
    orders, report = (Path(argument) for argument in sys.argv[1:3])
    if not report.is_file():
        print(f"{report} does not exist.")
        return 1
    expected = figures(orders)
    wrong = problems(report.read_text(encoding="utf-8", errors="replace"), expected)
    print("\n".join(wrong) if wrong else f"All {len(expected)} figures are right.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
