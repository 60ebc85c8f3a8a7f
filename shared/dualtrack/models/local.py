"""The local model's server process: llama.cpp's own OpenAI-compatible server, by `xllamacpp`, on 127.0.0.1.

    python -m dualtrack.models.local --model qwen2.5-coder-1.5b --port 0

Prints one JSON line with `base_url` once it answers. An API key in `DUALTRACK_LOCAL_MODEL_KEY` is asked of every request. With
`--until-eof` it ends when its standard input does, so that it never outlives the process that started it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dualtrack.domain.errors import DualtrackError, ModelError
from dualtrack.models.weights import ConsoleProgress, fetch_weights, local_cache
from dualtrack.settings import LocalModelSettings

KEY_VARIABLE: Final = "DUALTRACK_LOCAL_MODEL_KEY"
ALIAS: Final = "local"
_PROMPT_CACHE_MIB: Final = 512
"""Prompts of idle conversations kept in memory; llama.cpp's default is 8 GiB."""
_LOAD_TIMEOUT_S: Final = 300


def need_runtime() -> None:
    """Raise a `ModelError` that says what to install unless the runtime is there."""
    if find_spec("xllamacpp") is None:
        raise ModelError(
            "The local model needs its runtime: install the extra `dualtrack[local]` (`uv sync --extra local`), set a provider's key "
            "such as OPENAI_API_KEY, or configure a model server under `models`."
        )


def usable_cores() -> int:
    """Cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def start(weights: Path, settings: LocalModelSettings, *, port: int, key: str | None) -> tuple[Any, str]:
    """Load the model and serve it; gives the server (keep it alive) and its address.

    Raises:
        ModelError: the runtime is missing, or the model can't be loaded.
    """
    need_runtime()
    os.environ["OMP_WAIT_POLICY"] = "passive"  # read as the library loads; spinning threads are ten times slower on a busy machine
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {ALIAS}
    params.port = port
    params.hostnames = ["127.0.0.1"]
    params.api_keys = [key] if key else []
    params.n_ctx = settings.context_tokens * settings.slots
    params.n_parallel = settings.slots
    params.cpuparams.n_threads = settings.threads or usable_cores()
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    params.use_jinja = True
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = 1
    try:
        server = xllamacpp.Server(params)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"llama.cpp can't load {weights}: {error}. Is it a GGUF file, and is there enough memory?") from error
    return server, str(server.listening_address)


def wait_healthy(url: str, timeout_s: float = _LOAD_TIMEOUT_S) -> None:
    """Return once the server answers on `/health`.

    Raises:
        ModelError: it does not within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as response:  # noqa: S310 - our own http:// address
                if response.status == 200:  # noqa: PLR2004 - HTTP OK
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise ModelError(f"The local model did not load within {timeout_s:g} s.")


def _stop_at_eof(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def main() -> int:
    """Serve until stopped; 2 when the model can't be had."""
    parser = argparse.ArgumentParser(description="Serves the local model, OpenAI-compatible, on 127.0.0.1.")
    defaults = LocalModelSettings()
    parser.add_argument("--model", default=defaults.source, help="a catalogue name, a path to a GGUF file, or hf:owner/repo/file.gguf")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free one")
    parser.add_argument("--context-tokens", type=int, default=defaults.context_tokens, help="context window of each slot")
    parser.add_argument("--slots", type=int, default=defaults.slots, help="requests served at once")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads; default: one per core")
    parser.add_argument("--cache", type=Path, default=None, help="folder for weights")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    options = parser.parse_args()
    settings = LocalModelSettings(
        source=options.model, context_tokens=options.context_tokens, slots=options.slots, threads=options.threads, cache=options.cache
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if options.until_eof:
        threading.Thread(target=_stop_at_eof, args=(stop,), daemon=True).start()
    try:
        need_runtime()
        weights = fetch_weights(
            settings.source, local_cache(settings.cache), environment=os.environ, progress=ConsoleProgress(settings.source)
        )
        server, url = start(weights, settings, port=options.port, key=os.environ.pop(KEY_VARIABLE, None))
        wait_healthy(url)
    except DualtrackError as error:
        sys.stderr.write(f"{error.message}\n")
        return 2
    sys.stdout.write(json.dumps({"base_url": f"{url}/v1", "model": ALIAS}) + "\n")
    sys.stdout.flush()
    stop.wait()
    del server
    return 0


if __name__ == "__main__":
    sys.exit(main())
