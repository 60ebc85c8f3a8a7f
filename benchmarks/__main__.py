"""`python -m benchmarks`: what there is and how to run it."""

import importlib
import pkgutil

import benchmarks


def main() -> None:
    for found in pkgutil.iter_modules(benchmarks.__path__):
        if found.name.startswith("_") or found.ispkg:
            continue
        module = importlib.import_module(f"benchmarks.{found.name}")
        first = (module.__doc__ or "").strip().splitlines()[0]
        print(f"  .venv/bin/python -m benchmarks.{found.name:<12} {first}")


if __name__ == "__main__":
    main()
