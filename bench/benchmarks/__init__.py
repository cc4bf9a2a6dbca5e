"""The asv suite: how long each public call takes, over the named workloads. Smoke-run by tests/house/test_bench.py."""

import sys
from pathlib import Path

# asv imports this package alone; workloads.py and the others stand beside it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
