"""Hypothesis profiles: ``--hypothesis-profile=nightly``, or HYPOTHESIS_PROFILE=nightly.

``default``: a few hundred examples. ``quick``: for the while one writes. ``nightly``: 20,000.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Never a time limit: the machine may be busy. Generating engines takes most of an example.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("default", max_examples=300, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("quick", max_examples=25, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("nightly", max_examples=20_000, **_COMMON)  # type: ignore[arg-type]
# The same examples each time: what lands is not decided by luck. Chance is for developers and nights.
settings.register_profile("ci", max_examples=25, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))
