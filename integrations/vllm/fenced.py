"""nixldesc_vllm with vLLM's own arithmetic fenced off: whatever calls it fails the request.

`kv_connector_module_path="fenced"` in the engines that are tested.
"""

from typing import Any, NoReturn

from nixldesc_vllm import NixlConnector, NixlPushConnector
from nixldesc_vllm.connector import PullWorker, PushWorker, Worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker, tp_mapping

__all__ = ["NixlConnector", "NixlPushConnector"]

FENCED = [
    "_align_remote_regions_by_layer",
    "_apply_dcp_prefix_caching",
    "_apply_prefix_caching",
    "_apply_prefix_caching_by_region",
    "_block_ids_by_region",
    "_block_strided_descs",
    "_build_fa_local",
    "_build_fa_remote",
    "_build_local_splits_from_plan",
    "_build_mamba_local",
    "_build_mamba_remote",
    "_compute_desc_ids",
    "_fa_desc_replicated",
    "_is_region_replicated",
    "_map_block_ids_for_block_size_ratio",
    "_needs_split_local_xfer_handles",
    "_pack_strided_descs",
    "_read_blocks",
    "_read_blocks_mixed",
    "_set_region_layers",
    "_split_remote_blocks",
    "_split_remote_packed_rows",
    "_strided_desc_starts",
    "_validate_remote_agent_handshake",
    "_xfer_blocks",
    "get_mapped_blocks",
    "post_process_device_kv_on_receive",
    "post_process_device_kv_on_receive_heterogeneous_attn",
    "register_local_xfer_handler",
]

# What nixldesc_vllm replaces: vLLM's version is out of reach but through `super()`.
REPLACED = ["add_remote_agent", "_read_blocks_for_req", "_xfer_blocks_for_req", "_logical_to_kernel_block_ids"]


def _fence(name: str) -> Any:
    def fenced(*args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError(f"vLLM's own {name} was called")

    return fenced


for _name in FENCED:
    _owners = [worker for worker in (PullWorker, PushWorker) if hasattr(worker, _name)]
    if not _owners:
        raise AttributeError(f"vLLM has no {_name} any more: this is another version")
    for _owner in _owners:
        setattr(_owner, _name, _fence(_name))
for _name in REPLACED:
    for _owner in Worker.__mro__[1:]:  # vLLM's
        if _name in vars(_owner):
            setattr(_owner, _name, _fence(_name))
for _module in (base_worker, tp_mapping):
    _module.compute_tp_mapping = _fence("compute_tp_mapping")
