"""llama.cpp's ``llama-server``. Read from its source and README (2026; ``tools/server``), not captured.

Metrics only with ``--metrics``. ``kv_cache_usage_ratio`` is there in builds of 2024 and early 2025 alone; newer ones
say nothing of KV use. ``n_decode_total`` moves at each call of the model; the token counters when a prompt is done
(``prompt_tokens_total``, without cached ones) and when a request ends (``tokens_predicted_total``). Seconds and tokens
of prediction move together, so their quotient is the time between tokens. Numbers are written with six digits, so a
counter above ten million moves by hundreds. The start of the process is told in a header
of the page only. The page is written by the loop that also computes: a stalled engine gives none.

Slots that are all taken let requests wait without bound, so no status means a full queue; 503 is a model that is still
being loaded, on every path, ``/health`` too. It answers under any model's name, and has no version path.
"""

from __future__ import annotations

from types import MappingProxyType

from gateway.fleet.engines.base import Adapter
from gateway.fleet.signals import Signal, Source

LLAMACPP = Adapter(
    name="llama.cpp",
    owners=frozenset({"llamacpp"}),
    signals=MappingProxyType(
        {
            Signal.PROMPT_TOKENS: Source(("llamacpp:prompt_tokens_total",)),
            Signal.GENERATION_TOKENS: Source(("llamacpp:tokens_predicted_total",)),
            Signal.ITL_COUNT: Source(("llamacpp:tokens_predicted_total",)),
            Signal.ITL_SUM: Source(("llamacpp:tokens_predicted_seconds_total",)),
            Signal.STEPS: Source(("llamacpp:n_decode_total",)),
            Signal.KV_USE: Source(("llamacpp:kv_cache_usage_ratio",), max, most=1.0),
            Signal.RUNNING: Source(("llamacpp:requests_processing",)),
            Signal.WAITING: Source(("llamacpp:requests_deferred",)),
        }
    ),
    expected=frozenset({Signal.RUNNING, Signal.WAITING, Signal.PROMPT_TOKENS, Signal.GENERATION_TOKENS}),
    progress=(Signal.STEPS,),
    version_path=None,
)
