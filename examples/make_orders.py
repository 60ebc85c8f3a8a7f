"""Writes orders.csv, the input of the demo: 320 made-up orders, the same every time."""

import csv
import random
from datetime import date, timedelta
from pathlib import Path

REGIONS = {"North": 5, "South": 3, "East": 4, "West": 2}
PRODUCTS = {"Desk lamp": 34.9, "Office chair": 189.0, "Standing desk": 429.0, "Monitor arm": 79.5, "Notebook": 4.25, "Headset": 112.4}


def main() -> None:
    rng = random.Random(20260101)  # noqa: S311 - made-up data
    path = Path(__file__).with_name("orders.csv")
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["order_id", "date", "region", "product", "quantity", "unit_price"])
        for number in range(1, 321):
            day = date(2026, 1, 1) + timedelta(days=rng.randrange(181))
            region = rng.choices(list(REGIONS), weights=list(REGIONS.values()))[0]
            product = rng.choice(list(PRODUCTS))
            price = round(PRODUCTS[product] * rng.choice([1, 1, 1, 0.9, 0.95]), 2)
            out.writerow([f"A{number:04d}", day.isoformat(), region, product, rng.randint(1, 9), f"{price:.2f}"])


if __name__ == "__main__":
    main()
