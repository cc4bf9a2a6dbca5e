"""vLLM 0.33.0's NIXL connectors, pull and push, with nixldesc for everything that is arithmetic.

On both engines::

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_producer",
                                            "kv_connector_module_path": "nixldesc_vllm"}'

`NixlPushConnector` pushes. vLLM keeps what is its own: scheduling, leases, heartbeats, the handshake's socket, metrics.
What is nixldesc's::

    memory.py       what a worker's registered tensors are: one Layout, sent in the handshake
    connector.py    one plan per pair of engines, one start per request; which entries a block list holds

The classes have vLLM's names because vLLM asks for a connector by name in a few places.
"""

from nixldesc_vllm.connector import NixlConnector, NixlPushConnector

__all__ = ["NixlConnector", "NixlPushConnector"]
