"""For users' tests: an agent without NIXL, random engine pairs, and the painted-memory oracle.

Nothing here is imported by the library. All of it needs numpy only, the strategies also hypothesis
when they are called (``pip install nixldesc[testing]``).

>>> from nixldesc.testing import LoopbackAgent
>>> LoopbackAgent("decode-0")
LoopbackAgent('decode-0', {'ranges': 0, 'dlists': 0, 'xfers': 0})
"""

from .geometry import KINDS, EnginePair, Limits, random_pair
from .loopback import LoopbackAgent, LoopbackError
from .painted import Copies, Delivery, DeliveryError, Memory, check_delivery, nixl_copies, planned_copies
from .strategies import Transfer, block_tables, layouts, requests, tp_pairs, transfers
from .tables import Request, random_request, random_tables

__all__ = [
    "KINDS",
    "Copies",
    "Delivery",
    "DeliveryError",
    "EnginePair",
    "Limits",
    "LoopbackAgent",
    "LoopbackError",
    "Memory",
    "Request",
    "Transfer",
    "block_tables",
    "check_delivery",
    "layouts",
    "nixl_copies",
    "planned_copies",
    "random_pair",
    "random_request",
    "random_tables",
    "requests",
    "tp_pairs",
    "transfers",
]
