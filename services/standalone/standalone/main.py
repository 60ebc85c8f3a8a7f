"""`dualtrack-standalone run | demo`: the whole platform on this machine."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cli.client import Client
from cli.credentials import Credentials
from cli.outcome import CliError
from dualtrack import __version__, bootstrap
from dualtrack.domain.errors import DualtrackError
from standalone import credentials, settings

if TYPE_CHECKING:
    from standalone.platform import Platform

STATE: Final = Path(".dualtrack")
_EXAMPLE: Final = Path("examples/orders.csv")


def main() -> None:
    """Parse, run, and turn every expected failure into one clear line and exit status 1."""
    parser = argparse.ArgumentParser(prog="dualtrack-standalone", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="start the platform and keep it up")
    demo = commands.add_parser("demo", help="one chat question and one job, with the report's figures checked")
    demo.add_argument("--orders", type=Path, default=_EXAMPLE, help=f"the input file (default: {_EXAMPLE})")
    arguments = parser.parse_args()
    try:
        sys.exit(_run() if arguments.command == "run" else _demo(arguments.orders))
    except (DualtrackError, CliError) as error:
        sys.exit(f"dualtrack: {error.message}")
    except KeyboardInterrupt:
        sys.exit(130)


@contextlib.contextmanager
def _only_one() -> Iterator[bool]:
    """Whether this process is the one that may run a platform on the state directory, for the time of the block."""
    STATE.mkdir(mode=0o700, exist_ok=True)
    with (STATE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextlib.contextmanager
def _platform(*, any_port: bool) -> Iterator[Platform]:
    from standalone.platform import Platform

    loaded, own_database = settings.load(STATE)
    if any_port and "DUALTRACK_ROUTER__PORT" not in os.environ:
        loaded = loaded.model_copy(update={"router": loaded.router.model_copy(update={"port": 0})})
    with Platform(loaded, STATE, own_database=own_database, say=_say) as platform:
        yield platform


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


def _run() -> int:
    stop = bootstrap.stop_event()
    with _only_one() as mine:
        if not mine:
            sys.exit(f"dualtrack: a platform is already running in this directory ({(STATE / 'credentials.json')} says where).")
        print(f"Dualtrack {__version__}, standalone")
        with _platform(any_port=False) as platform:
            _introduce(platform)
            stop.wait()
            print("\nstopping", flush=True)
        if not platform.drained:
            os._exit(0)  # a thread still waits for a model; everything is closed and written, and it may take minutes
    return 0


def _introduce(platform: Platform) -> None:
    found = platform.credentials
    key = found.api_key if found.new else "$DUALTRACK_API_KEY"
    models = [model for model in platform.models.gateway.models() if model.track]
    print("  models: " + "; ".join(f"{model.id} = {', '.join(model.targets)}" for model in models))
    if found.new:
        print(f"\nYour API key, shown this once:\n\n    export DUALTRACK_API_KEY={found.api_key}")
    print(f"\nThe dualtrack command finds address and key in {STATE / 'credentials.json'}. To try it, in another terminal:\n")
    print('    .venv/bin/dualtrack chat "What is a message queue good for?"')
    print('    .venv/bin/dualtrack jobs submit "Count the lines of orders.csv." --file examples/orders.csv --watch')
    print(f'    curl -s {found.base_url}/v1/models -H "Authorization: Bearer {key}"\n')
    kept = " and ".join(str(path) for path in platform.data)
    print(f"API documentation: {found.base_url}/docs    Ctrl-C stops the platform; its data stays in {kept}.", flush=True)


def _demo(orders: Path) -> int:
    from standalone import demo

    if not orders.is_file():
        sys.exit(f"dualtrack: {orders} is not there: run the demo from the top of the checkout, or give --orders FILE.")
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        if stack.enter_context(_only_one()):
            print(f"Dualtrack {__version__}, standalone: starting")
            platform = stack.enter_context(_platform(any_port=True))
            platform.fetch_model()
            found = platform.credentials
        else:
            found = credentials.read(STATE / "credentials.json")
            print(f"Dualtrack {__version__}: using the platform that runs at {found.base_url}")
        client = stack.enter_context(Client(Credentials(found.base_url, found.api_key), version=__version__))
        print(f"  ready after {time.monotonic() - started:.0f} s")
        try:
            demo.run(client, orders, STATE / "demo")
        except demo.DemoFailed as error:
            print(f"\ndemo failed: {error}", file=sys.stderr)
            return 1
    print(f"Done in {time.monotonic() - started:.0f} s. `make run` keeps the platform up.")
    return 0


if __name__ == "__main__":
    main()
