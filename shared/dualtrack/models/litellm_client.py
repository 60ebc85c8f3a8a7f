"""LiteLLM, imported at first use (it takes seconds and 200 MB) and made quiet: no network at import, no callbacks, no banners."""

from __future__ import annotations

import functools
import logging
import os
import warnings
from typing import Any


@functools.cache
def litellm() -> Any:  # noqa: ANN401 - a module without types
    """The module, set up."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # its price list ships with it; else it is fetched at import
    warnings.filterwarnings(
        "ignore", message=".*on TypedDict class .* using the `ReadOnly` qualifier", category=UserWarning
    )  # its own types
    import litellm as module

    module.drop_params = True  # a model that knows no `temperature` is asked without it
    module.suppress_debug_info = True
    module.callbacks = []
    logging.getLogger("LiteLLM").setLevel(logging.ERROR)
    return module
