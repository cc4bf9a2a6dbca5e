"""vLLM's NIXL connectors with nixldesc inside; see the package's docstring.

A peer engine's life::

    handshake      add_remote_agent, once per rank: its agent and its Layout
    first request  _prepare: one plan (bound to it, where another engine like it has one), prepared lists
    request        _start: block tables by position; each rank that was met is notified, when its bytes are there
    end            _cleanup_remote_engine, or shutdown
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from vllm.distributed.kv_transfer.kv_connector.utils import EngineTransferInfo, TransferTopology
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import connector as vllm_connector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
    NixlAgentMetadata,
    NixlHandshakePayload,
    compute_nixl_compatibility_hash,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_scheduler import NixlPushConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import MambaSpec, iter_layer_specs

from nixldesc import Blocks, Layout, NixldescError, PeerMismatchError, Plan, plan
from nixldesc.adapter import PreparedPeer, PreparedSources, Transfer, prepare, register, settled
from nixldesc_vllm.memory import layout_of

logger = init_logger("vllm.nixldesc")


@dataclass
class Engine:
    """A remote engine: its ranks' names and memory, and the tokens in a block of each cache group (0: a state)."""

    tp_size: int
    block_tokens: list[int]
    names: dict[int, str] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    peers: list[PreparedPeer | PreparedSources] = field(default_factory=list)


class Worker(NixlBaseConnectorWorker):
    """What pull and push have in common. Block ids are the scheduler's: kernel blocks are no business of the wire."""

    # ------------------------------------------------------------- this engine

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        kernel_blocks = self._physical_blocks_per_logical_kv_block != 1
        if kernel_blocks or self.use_host_buffer or self._bidirectional_kv_xfer_enabled:
            raise NotImplementedError("kernel blocks smaller than blocks, host buffers and reading back from D")
        self._engines: dict[str, Engine] = {}
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._asked: dict[str, Any] = {}  # what D has said of a request that is pushed
        self.device_kv_caches = kv_caches
        self.transfer_topo = TransferTopology(  # whom to shake hands with
            tp_rank=self.tp_rank,
            tp_size=self.world_size,
            block_size=self.block_size,
            engine_id=self.engine_id,
            is_mla=self.use_mla,
            is_mamba=self._has_mamba,
            total_num_kv_heads=1 if self.use_mla else self.model_config.get_total_num_kv_heads(),
            attn_backends=self.attn_backends,
        )
        specs = [next(iter(iter_layer_specs(group.kv_cache_spec))) for group in self.kv_cache_config.transfer_groups]
        self._block_tokens = [0 if isinstance(spec, MambaSpec) else spec.block_size for spec in specs]
        self._ranks = {rank: layout_of(self, kv_caches, rank) for rank in range(self.world_size)}
        self._layout = self._ranks[self.tp_rank]
        self._registration = register(self.nixl_wrapper, self._layout)
        logger.info("this rank is %s", self._layout)
        self.compat_hash = compute_nixl_compatibility_hash(
            self.vllm_config, self.backend_name, transfer_mode=f"nixldesc {self._TRANSFER_MODE}"
        )
        self.xfer_handshake_metadata = self._handshake()

    def _handshake(self) -> NixlHandshakePayload:
        """This rank's agent and memory, in vLLM's form: it reads the engine's id, the rest is for add_remote_agent."""
        hello = {
            "agent": self.nixl_wrapper.get_agent_metadata(),
            "layout": self._layout.to_dict(),
            "block_tokens": self._block_tokens,
        }
        metadata = NixlAgentMetadata(
            engine_id=self.engine_id,
            agent_metadata=msgspec.msgpack.encode(hello),
            kv_caches_base_addr=[],
            device_id=self.device_id,
            num_blocks=self.num_blocks,
            block_lens=[],
            block_strides=[],
            kv_cache_layout=self.kv_cache_layout,
            block_size=self.block_size,
            ssm_sizes=(0, 0),
            attn_backend_name=self.backend_name,
            physical_blocks_per_logical_kv_block=1,
        )
        return NixlHandshakePayload(self.compat_hash, msgspec.msgpack.encode(metadata))

    # ------------------------------------------------------------- the other engines

    def add_remote_agent(
        self, nixl_agent_meta: NixlAgentMetadata, remote_tp_rank: int = 0, remote_tp_size: int = 1, _dcp_size: int = 1
    ) -> str:
        engine_id = nixl_agent_meta.engine_id
        self._add_topology(engine_id, remote_tp_size)
        hello = msgspec.msgpack.decode(nixl_agent_meta.agent_metadata)
        engine = self._engines.setdefault(engine_id, Engine(remote_tp_size, hello["block_tokens"]))
        engine.layouts[remote_tp_rank] = Layout.from_dict(hello["layout"])
        engine.names[remote_tp_rank] = name = self.nixl_wrapper.add_remote_agent(hello["agent"])
        return name

    def _add_notif_only_remote_agent(self, metadata: NixlAgentMetadata, tp_size: int, _dcp_size: int = 1) -> str:
        self._add_topology(metadata.engine_id, tp_size)
        return self.nixl_wrapper.add_remote_agent(msgspec.msgpack.decode(metadata.agent_metadata)["agent"])

    def _add_topology(self, engine_id: str, tp_size: int) -> None:
        """vLLM looks every engine up; to it all blocks are as large as here, so it converts nothing afterwards."""
        self.transfer_topo.register_remote_engine(engine_id, EngineTransferInfo(tp_size, 0, self.block_size, 1))

    def _plan(self, dst: Layout, srcs: dict[int, Layout], **seat: int) -> Plan:
        """Engines of a fleet are alike: the second one's plan is the first one's with other addresses."""
        key = tuple(seat.values())
        try:
            self._plans[key] = self._plans[key].bind(dst, srcs)
        except (KeyError, PeerMismatchError):
            self._plans[key] = plan(dst, srcs, **seat)
        return self._plans[key]

    def _cleanup_remote_engine(self, engine_id: str, **kwargs: Any) -> None:
        if engine := self._engines.pop(engine_id, None):
            for peer in engine.peers:
                peer.release(timeout=5)
        super()._cleanup_remote_engine(engine_id, **kwargs)

    def shutdown(self) -> None:
        for started in [*self._recving_transfers.values(), *getattr(self, "_sending_transfers", {}).values()]:
            while started:
                started.pop().release(timeout=5)
        super().shutdown()

    def _finish_shutdown(self) -> None:
        super()._finish_shutdown()
        self._registration.release()

    # ------------------------------------------------------------- requests

    def _logical_to_kernel_block_ids(self, block_ids: Any, ratio: int) -> Any:
        return block_ids

    @staticmethod
    def _tables(block_ids: Sequence[Sequence[int]], block_tokens: Sequence[int], tokens: int) -> list[Any]:
        """A producer's lists: the last entries of as many as `tokens` tokens need; the last of the states."""
        return [
            Blocks.tail(ids, -(-tokens // size)) if size else list(ids)[-1:]
            for ids, size in zip(block_ids, block_tokens, strict=True)
        ]

    @staticmethod
    def _wanted(block_ids: Sequence[Sequence[int]], block_tokens: Sequence[int], skips: Sequence[int]) -> list[Any]:
        """A consumer's lists: its cached prefixes are not asked for; none where all is cached, P is told then."""
        return [
            Blocks(ids, skip=skip) if size else list(ids)[-1:]
            for ids, size, skip in zip(block_ids, block_tokens, skips, strict=bool(block_ids))
        ]

    def _clear(self, block_ids: Sequence[Sequence[int]], skips: Sequence[int], tokens: int) -> None:
        """Empty blocks that the request does not fill: attention multiplies what is there by nought; NaN stays NaN."""
        for name, cache in self.device_kv_caches.items():
            group = self.kv_cache_config.transfer_group_index_by_layer[name]
            if block_ids and (size := self._block_tokens[group]):
                for block in block_ids[group][max(0, tokens // size - skips[group]) :]:
                    cache[block].zero_()

    def _pop_done_transfers(self, transfers: dict[str, list[Transfer]]) -> tuple[set[str], set[str]]:
        done, failed = set(), set()
        for request, started in list(transfers.items()):
            for transfer in settled(started):
                if transfer.error is not None:
                    self._log_failure("transfer_failed", request, error=transfer.error)
                    self._handle_failed_transfer(request, None, failed)
                for handle in transfer.handles:
                    self.xfer_stats.record_transfer(self.nixl_wrapper.get_xfer_telemetry(handle))
                transfer.release()
                started.remove(transfer)
            if not started:
                del transfers[request]
                done.add(request)
        return done, failed


class PullWorker(NixlPullConnectorWorker, Worker):
    """D reads: what it has planned from all ranks of P, for each request."""

    def _prepare(self, engine: Engine) -> list[Any]:
        if not engine.peers:
            seat = {"dst_rank": self.tp_rank, "dst_size": self.world_size, "src_size": engine.tp_size}
            made = self._plan(self._layout, engine.layouts, **seat)
            engine.peers = [prepare(self.nixl_wrapper, engine.names, made)]
        return engine.peers

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        remote, engine_id = meta.remote, meta.remote.engine_id
        if engine_id in self._invalid_remote_engines:
            self._handle_failed_transfer(req_id, None, self._recv_failures, record_failed_transfer=False)
            return
        if engine_id not in self._remote_agents:
            self._background_nixl_handshake(req_id, engine_id, meta)
            return
        engine = self._engines[engine_id]
        self._engine_last_active[engine_id] = time.perf_counter()
        notify = f"{remote.request_id}:{max(1, self.world_size // engine.tp_size)}".encode()
        try:
            src = self._tables(remote.block_ids, engine.block_tokens, remote.num_tokens)
            dst = self._wanted(meta.local_block_ids, self._block_tokens, meta.local_num_computed_blocks)
            self._clear(meta.local_block_ids, meta.local_num_computed_blocks, remote.num_tokens)
            options = {"notify": notify, "null_block": 0, "tokens": remote.num_tokens}
            srcs = dict.fromkeys(engine.names, src)  # vLLM's ranks have the same blocks
            started = [peer.start(srcs, dst, **options) for peer in self._prepare(engine)]
        except NixldescError as error:
            self._log_failure("transfer_setup_failed", req_id, error=error, meta=meta)
            self._handle_failed_transfer(req_id, None, self._recv_failures)
        else:
            if meta.awaiting_kvs:
                self._recving_transfers[req_id] = started


class PushWorker(NixlPushConnectorWorker, Worker):
    """P writes: the part of each of D's ranks' plans that is its own."""

    def _do_send_reg_notif(self, req_id: str, reg_data: dict[str, Any]) -> None:
        """D says what it wants; from then on P may write, to all ranks: another one's blocks cannot be cleared now."""
        if self.world_size == 1:
            self._clear(reg_data["local_block_ids"], reg_data["skips"], reg_data["tokens"])
        super()._do_send_reg_notif(req_id, reg_data)

    def _prepare(self, engine: Engine) -> list[Any]:
        if not engine.peers:
            for rank, layout in engine.layouts.items():
                mine = self._plan(layout, self._ranks, dst_rank=rank, dst_size=engine.tp_size).get(self.tp_rank, ())
                engine.peers.append(prepare(self.nixl_wrapper, engine.names[rank], mine, local="src"))
        return engine.peers

    def _do_start_push_kv(self, request_id: str, local_block_ids: Any, registration_data: dict[str, Any]) -> None:
        self._asked[request_id] = registration_data
        super()._do_start_push_kv(request_id, local_block_ids, registration_data)

    def _xfer_blocks_for_req(self, req_id: str, meta: Any) -> None:
        asked, engine = self._asked.pop(req_id), self._engines[meta.remote.engine_id]
        src = self._tables(meta.local_block_ids, self._block_tokens, asked["tokens"])
        dst = self._wanted(meta.remote.block_ids, engine.block_tokens, asked["skips"])
        try:
            notify = f"{meta.remote.request_id}:{self.world_size}".encode()
            options = {"notify": notify, "null_block": 0, "tokens": asked["tokens"]}
            started = [peer.start(src, dst, **options) for peer in self._prepare(engine)]
        except NixldescError as error:
            self._log_failure("transfer_setup_failed", req_id, error=error, meta=meta)
            with self._sending_transfers_lock:
                self._send_failures.add(req_id)
        else:
            with self._sending_transfers_lock:
                self._sending_transfers[req_id].extend(started)


def _skips(scheduler: Any, blocks: Any, ids: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """How many entries of each group's full list are not asked for: cached ones, and those before a window."""
    full = scheduler.kv_cache_config.select_transfer_block_ids(blocks.get_block_ids())
    return tuple(len(every) - len(some) for every, some in zip(full, ids, strict=True)) if ids else ()


class PullScheduler(NixlPullConnectorScheduler):
    """Says for each block list where it begins; vLLM's own counts hashed blocks, which a window has none of."""

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if (entry := self._reqs_need_recv.get(request.request_id)) is not None:
            request, ids, _, parked = entry
            self._reqs_need_recv[request.request_id] = (request, ids, _skips(self, blocks, ids), parked)


class PushScheduler(NixlPushConnectorScheduler):
    """Says in D's registration where its block lists begin and how many tokens it wants."""

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if (asked := self._push_pending_registrations.get(request.request_id)) is not None:
            asked["skips"] = _skips(self, blocks, asked["local_block_ids"])
            asked["tokens"] = self._get_remote_prefill_token_count(request.num_prompt_tokens)


class _Connector(vllm_connector.NixlBaseConnector):
    """vLLM's, with our scheduler or our worker."""

    scheduler: Any
    worker: Any

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        vllm_connector.NixlBaseConnector.__init__(self, vllm_config, role, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = self.scheduler(vllm_config, self.engine_id, kv_cache_config)
        else:
            self.connector_worker = self.worker(vllm_config, self.engine_id, kv_cache_config)

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        return False


class NixlConnector(_Connector, vllm_connector.NixlPullConnector):
    """D pulls."""

    scheduler, worker = PullScheduler, PullWorker


class NixlPushConnector(_Connector, vllm_connector.NixlPushConnector):
    """P pushes."""

    scheduler, worker = PushScheduler, PushWorker
