"""vLLM 0.33.0's descriptor methods, computed through nixldesc's public API.

Each function has the signature of the vLLM method that it stands for. Arithmetic on addresses, lengths, offsets, ids
and ranks is nixldesc's; what is left here is reading the worker's attributes, and building vLLM's representation from
the answer. Many of vLLM's tests build workers with only the attributes that vLLM's own code reads, and geometries that
no worker could have (strides smaller than pages, widths that TP does not divide): what looks odd here is for those.
"""

import collections

import numpy as np

import nixldesc as nd

MAX = 2**31 - 1


def _is_int(x):
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _ints(seq):
    return [int(x) for x in seq]


def _attention(spec_type):
    from vllm.v1.kv_cache_interface import AttentionSpec

    return issubclass(spec_type, AttentionSpec)


def _state(spec_type):
    from vllm.v1.kv_cache_interface import MambaSpec

    return issubclass(spec_type, MambaSpec)


def _only(mapping, rank):
    """The one DlistPair of a rank: all memory here has one mem_type."""
    (pair,) = mapping[rank]
    return pair


# ------------------------------------------------------------------ tables
def _block_strided_descs(base_addr, block_len, block_stride, num_blocks, block_size_ratio, device_id):
    base, ln, st, n, k, dev = map(int, (base_addr, block_len, block_stride, num_blocks, block_size_ratio, device_id))
    if k > 1 and st != k * ln:
        # vLLM: one row per block (id = block * k + sub).  nixldesc: k rows (id = sub * n + block).  To get vLLM's
        # order out of a Layout, every block has to be declared as a region.
        return nd.Layout([nd.Region(f"b{b}", base + b * st, ln, k, device_id=dev) for b in range(n)]).table()
    return nd.Layout(
        [nd.Region("r", base, ln, n, block_stride=st if k == 1 else None, sub_blocks=k, device_id=dev)]
    ).table()


def _build_fa_local(self, base_addresses, block_size_ratio):
    assert self.transfer_topo is not None and base_addresses
    regions = self._transfer_layer_region_indices or range(len(base_addresses))
    k = block_size_ratio
    cols = [
        (
            int(base_addresses[i]),
            int(self.block_len_per_layer[i]) // k,
            int(self.block_stride_per_layer[i]),
            int(self.region_num_blocks[i]),
        )
        for i in regions
    ]
    if k == 1 or all(s == k * l for _, l, s, _ in cols):
        return nd.Layout(
            [
                nd.Region(
                    f"r{j}", b, l, n, block_stride=s if k == 1 else None, sub_blocks=k, device_id=int(self.device_id)
                )
                for j, (b, l, s, n) in enumerate(cols)
            ]
        ).table()
    return np.concatenate([_block_strided_descs(b, l, s, n, k, self.device_id) for b, l, s, n in cols])


def _heads(self, plan, meta, fa):
    """Global head ranges of this rank and of the ranks it reads from, or None when the worker does not know them."""
    t = self.transfer_topo
    try:
        ptp = t.get_engine_info(meta.engine_id).remote_tp_size
        if not all(_is_int(v) for v in (ptp, t.tp_size, t.tp_rank, t.total_num_kv_heads)):
            return None
        mine = nd.shard_range(t.total_num_kv_heads, t.tp_size, t.tp_rank)
        return mine, {r: nd.shard_range(t.total_num_kv_heads, ptp, r) for r in plan.source_ranks_per_group[fa]}
    except (AttributeError, KeyError, TypeError, nd.GeometryError):
        return None


def _build_fa_remote(self, plan, nixl_agent_meta, block_size_ratio):
    meta, k = nixl_agent_meta, int(block_size_ratio)
    assert self.transfer_topo is not None and meta.kv_caches_base_addr
    fa = next(i for i, t in enumerate(self._group_spec_types) if _attention(t))
    counts = meta.region_num_blocks or [meta.num_blocks] * len(meta.kv_caches_base_addr)
    dst, src = [], collections.defaultdict(list)
    for i, base in enumerate(meta.kv_caches_base_addr):
        j = self._transfer_layer_region_indices[i] if self._transfer_layer_region_indices else i
        whole = int(self.block_len_per_layer[j])
        unit = whole // k  # one remote block's worth of a local block
        remote_len = int(meta.block_lens[i])
        if self._is_region_replicated(j):
            mine, theirs, item = (0, 1), None, unit
        else:
            draft = j in self._head_sharded_draft_regions
            p = self.draft_tp_mappings[meta.engine_id] if draft else plan
            reads, off = len(p.source_ranks_per_group[fa]), int(p.rank_offset_factor)
            known = None if draft else _heads(self, p, meta, fa)
            if known and unit % (known[0][1] - known[0][0]) == 0:
                mine, theirs = known
                item = unit // (mine[1] - mine[0])
            else:  # slices instead of heads: all that the TPMapping says
                item = unit // reads
                if reads > 1:
                    mine = (0, reads)
                    theirs = {r: (s, s + 1) for s, r in enumerate(p.source_ranks_per_group[fa])}
                else:
                    mine = (off, off + 1)
                    theirs = {p.source_ranks_per_group[fa][0]: (0, max(remote_len // max(item, 1), 1))}
        name = f"r{i}"

        def axes(tokens, h):
            return (nd.Axis("token", 0, tokens), nd.Axis("head", *h))  # "token": remote blocks in a local block

        need = (mine[1] - mine[0]) * item * k
        dst.append(
            nd.Region(name, 0, max(whole, need), int(counts[i]), sections=(nd.Section(name, axes(k, mine), item),))
        )
        for r in plan.source_ranks_per_group[fa]:
            h = mine if theirs is None else theirs.get(r, next(iter(theirs.values())))
            src[r].append(
                nd.Region(
                    name,
                    int(base),
                    remote_len,
                    int(counts[i]),
                    block_stride=int(meta.block_strides[i]),
                    device_id=int(meta.device_id),
                    sections=(nd.Section(name, axes(1, h), item),),
                )
            )
    dst = nd.Layout(dst)
    out = {}
    # vLLM makes one table per peer: a replicated region is only in the first.
    for pairs in nd.plan(dst, {r: nd.Layout(regs) for r, regs in src.items()}).values():
        for pair in pairs:
            for reg, (_, name, _) in zip(pair.src.regions, pair.origin, strict=True):
                out.setdefault(name, reg)
    rows = [out[f"r{i}"] for i in range(len(dst.regions))]
    return (
        nd.Layout(rows).table()
        if len({r.name for r in rows}) == len(rows)
        else np.concatenate([nd.Layout([r]).table() for r in rows])
    )


def _states(self, name, scale, tp, rank):
    """Sections of one state block, per-rank sizes times `scale` being the global ones."""
    d = self._conv_decomp
    proj = {f"p{i}": int(w) * scale for i, w in enumerate(d.local_proj_dims)}
    return nd.state_sections(
        name,
        projections=proj,
        conv_rows=int(d.conv_rows),
        conv_itemsize=int(d.conv_dtype_size),
        ssm_shape=(int(self._mamba_ssm_size[1]) * scale,),
        ssm_itemsize=1,
        tp_size=tp,
        tp_rank=rank,
    )


def _state_regions(sections, name, base, page, stride, count, dev):
    """One region per section, so that neighbouring sections stay separate rows as vLLM wants them.

    A section's offset goes into its region's base: some of vLLM's tests have strides smaller than the state's page.
    """
    out = []
    for s in sections:
        size = s.strides[0] * (s.axes[0].stop - s.axes[0].start)
        out.append(
            nd.Region(
                f"{s.name}@{name}",
                base + s.offset,
                size,
                count,
                block_stride=stride,
                device_id=dev,
                sections=(nd.Section(s.name, s.axes, s.itemsize),),
            )
        )
    return out


def _build_mamba_local(self, base_addresses):
    assert base_addresses and self._conv_decomp is not None
    k, n, dev = int(self._physical_blocks_per_logical_kv_block), int(self._logical_num_blocks), int(self.device_id)
    regs = []
    for i in self._ssm_region_indices or range(len(base_addresses)):
        stride = int(self.block_stride_per_layer[i]) * k
        secs = _states(self, f"l{i}", 1, 1, 0)
        assert secs[-1].offset == int(self._mamba_ssm_size[0])
        end = secs[-1].offset + int(self._mamba_ssm_size[1])
        regs += _state_regions(secs, i, int(base_addresses[i]), end, stride, n, dev)
    if (i := self._ple_region_index) is not None:
        regs.append(
            nd.Region(
                "ple",
                int(base_addresses[i]),
                int(self._ple_page_len()) * k,
                n,
                block_stride=int(self.block_stride_per_layer[i]) * k,
                device_id=dev,
            )
        )
    here = nd.Layout(regs)
    return _only(nd.plan(here, {0: here}), 0).dst.table()


def _build_mamba_remote(self, nixl_agent_meta, tp_ratio, transfer_info):
    meta = nixl_agent_meta
    assert meta.kv_caches_base_addr and self._conv_decomp is not None
    d_tp, p_tp = max(tp_ratio, 1), max(-tp_ratio, 1)
    d_rank = int(self.tp_rank) % d_tp
    k = int(transfer_info.remote_physical_blocks_per_logical)
    n, dev = int(meta.num_blocks) // k, int(meta.device_id)
    lk = int(self._physical_blocks_per_logical_kv_block)
    divisible = (
        all(int(w) % p_tp == 0 for w in self._conv_decomp.local_proj_dims) and int(self._mamba_ssm_size[1]) % p_tp == 0
    )
    dst, srcs = [], {r: [] for r in range(p_tp)}
    for i in self._ssm_region_indices or range(len(meta.kv_caches_base_addr)):
        base, stride = int(meta.kv_caches_base_addr[i]), int(meta.block_strides[i]) * k
        for regs, tp, rank, b, st in [(dst, d_tp, d_rank, 0, None)] + [
            (srcs[r], p_tp, r, base, stride) for r in range(p_tp)
        ]:
            secs = _states(self, f"l{i}", d_tp, tp, rank) if divisible else _byte_slices(self, f"l{i}", p_tp, tp, rank)
            end = secs[-1].offset + secs[-1].strides[0] * (secs[-1].axes[0].stop - secs[-1].axes[0].start)
            # vLLM takes the peer's word for where its SSM state starts.
            last, start = secs[-1], int(meta.ssm_sizes[0])
            if st is not None and last.offset != start:
                secs = (*secs[:-1], nd.Section(last.name, last.axes, last.itemsize, offset=start))
            regs += _state_regions(secs, i, b, end, st, n, dev)
    if (i := self._ple_region_index) is not None:
        dst.append(nd.Region("ple", 0, int(self._ple_page_len()) * lk, n))
        for regs in srcs.values():
            regs.append(
                nd.Region(
                    "ple",
                    int(meta.kv_caches_base_addr[i]),
                    int(meta.ple_block_len) * k,
                    n,
                    block_stride=int(meta.block_strides[i]) * k,
                    device_id=dev,
                )
            )
    return _only(
        nd.plan(nd.Layout(dst), {r: nd.Layout(x) for r, x in srcs.items()}, dst_rank=0, dst_size=1), 0
    ).src.table()


def _byte_slices(self, name, parts, tp, rank):
    """Projections cut into `parts` equal byte ranges, rounding down, whatever their elements are (P_TP > D_TP)."""
    out, at = [], 0
    for j, size in enumerate([*map(int, self._conv_decomp.proj_bytes), int(self._mamba_ssm_size[1])]):
        ax = nd.Axis("slice", *nd.shard_range(parts, tp, rank))
        out.append(nd.Section(f"{name}.p{j}", (ax,), size // parts, offset=at))
        at += size // parts * (ax.stop - ax.start)
    return tuple(out)


def _build_local_splits_from_plan(self, plan, src_blocks_data, num_fa_descs, block_size_ratio=1):
    types = self._group_spec_types
    fa_n = len(plan.source_ranks_per_group[next(i for i, t in enumerate(types) if _attention(t))])
    ssm = next((i for i, t in enumerate(types) if _state(t)), None)
    ssm_n = len(plan.source_ranks_per_group[ssm]) if ssm is not None else 0
    table = [tuple(int(v) for v in row) for row in src_blocks_data]
    whole = nd.Layout(
        [nd.Region(f"row{i}", a, l, c, block_stride=s, device_id=d) for i, (a, l, d, s, c) in enumerate(table)]
    )
    sharded_end = whole.num_descs - (int(self._logical_num_blocks) if self._ple_region_index is not None else 0)
    assert num_fa_descs <= sharded_end
    n_regions = len(self.block_len_per_layer)
    if n_regions and self.num_regions:
        idx = list(self._transfer_layer_region_indices or range(n_regions))
        fa = nd.Layout.from_columns(
            base_addrs=[0] * len(idx),
            block_lens=[1] * len(idx),
            num_blocks=[int(self.region_num_blocks[i]) * block_size_ratio for i in idx],
        )
        assert fa.num_descs == num_fa_descs

        def replicated(start):
            return self._is_region_replicated(idx[fa.locate(start)[0]])
    else:

        def replicated(start):
            return False

    def slices(i, n):
        """The part of row i that each of n sources fills: a plan of one head-sharded region against n sources."""
        a, l, d, s, c = table[i]
        item = l // n
        here = nd.Layout(
            [
                nd.Region(
                    "r",
                    a,
                    l,
                    c,
                    block_stride=s,
                    device_id=d,
                    sections=(nd.Section("r", (nd.Axis("head", 0, n),), item),),
                )
            ]
        )
        there = {
            x: nd.Layout([nd.Region("r", 0, item, c, sections=(nd.Section("r", (nd.Axis("head", x, x + 1),), item),))])
            for x in range(n)
        }
        got = nd.plan(here, there)
        return [got[x][0].dst.regions[0] for x in range(n)]

    parts = []  # per row: None (whole) or ("fa" | "ssm", slices)
    for i, start in enumerate(whole.starts[:-1].tolist()):
        if start < num_fa_descs:
            rep = replicated(start)
            assert block_size_ratio == 1 or fa_n == 1 or rep
            parts.append(None if rep else ("fa", slices(i, fa_n)))
        else:
            parts.append(("ssm", slices(i, ssm_n)) if start < sharded_end and ssm_n else None)
    for p, rank in enumerate(plan.all_source_ranks):
        slot = {"fa": plan.rank_to_attention_slot.get(rank, 0), "ssm": p}
        rows = [whole.regions[i] if x is None else x[1][slot[x[0]]] for i, x in enumerate(parts)]
        # regions of one layout need names of their own: a derived region cannot be renamed, so tables are stacked
        yield np.concatenate([nd.Layout([r]).table() for r in rows])


# ------------------------------------------------------------------ ids
def _ids_layout(counts, groups):
    """Ids need no addresses: zero bases, one-byte blocks."""
    return nd.Layout(
        [nd.Region(f"r{i}", 0, 1, int(n), groups=g) for i, (n, g) in enumerate(zip(counts, groups, strict=False))]
    )


def _compute_desc_ids(
    self,
    block_ids,
    dst_num_blocks,
    block_size_ratio,
    physical_blocks_per_logical,
    region_num_blocks=None,
    region_group_ids=None,
    uses_region_group_mapping=None,
):
    scale = 1 if block_size_ratio is None else block_size_ratio
    n = int(dst_num_blocks * scale)
    routing = tuple(self._transfer_layer_group_ids or ())
    lists = [np.asarray(g, dtype=np.int64) if len(g) else [] for g in block_ids]
    num_state = 0
    if self._has_mamba:
        num_state = len(self._ssm_region_indices or self.block_len_per_layer) * (
            len(self._conv_decomp.local_conv_offsets) + 1
        )
    regions = len(routing) or self.num_regions or len(self.block_len_per_layer)
    counts = [n] * regions if region_num_blocks is None else [int(c * scale) for c in region_num_blocks]
    if routing:
        assert len(counts) == regions
        used = set(routing)
        lists += [[]] * (max(used) + 1 - len(lists))
        lists = [x if g in used else [] for g, x in enumerate(lists)]
        return _ids_layout(counts, [(int(g),) for g in routing]).desc_ids(lists, order="region")
    if not num_state:
        gids = region_group_ids
        if gids is None:
            gids = self.region_group_ids
            if uses_region_group_mapping is None:
                uses_region_group_mapping = self._uses_region_group_mapping
        if not gids and len(counts) == 1:
            gids = [0]
        assert len(gids) == len(counts)
        if uses_region_group_mapping is None:
            uses_region_group_mapping = len(set(gids)) > 1
        if not uses_region_group_mapping:
            if not lists:
                raise ValueError("no groups")
            return _ids_layout(counts, [None] * len(counts)).desc_ids(lists, order="region")
        every = tuple(range(len(lists))) or None
        lists += [[]] * (max(_ints(gids)) + 1 - len(lists))
        return _ids_layout(counts, [every if g == -1 else (int(g),) for g in gids]).desc_ids(lists, order="group")
    # hybrid: attention regions, then the parts of the state pages, then the PLE page
    from vllm.v1.kv_cache_interface import CircularBufferSpec

    types = self._group_spec_types
    att = [i for i in range(len(lists)) if _attention(types[i])]
    plain = tuple(i for i in att if types[i] is not CircularBufferSpec)
    state = tuple(i for i in range(len(lists)) if _state(types[i]) and i != self._ple_group_index)
    if any(i not in att and not _state(types[i]) for i in range(len(lists))):
        raise ValueError("unknown spec type")
    scratch = set(_ints(self._scratch_region_indices)) if len(plain) < len(att) else set()
    groups = [tuple(att) if r in scratch else plain for r in range(len(counts))]
    logical = int(dst_num_blocks) // int(physical_blocks_per_logical)
    counts = list(counts) + [logical] * num_state
    groups += [state] * num_state
    if self._ple_group_index is not None and self._ple_group_index < len(lists):
        counts.append(logical)
        groups.append((int(self._ple_group_index),))
    # a region that no group uses (groups=()) cannot be said: give it a group without blocks
    spare = len(lists)
    if any(not g for g in groups):
        lists.append([])
        groups = [g or (spare,) for g in groups]
    return _ids_layout(counts, groups).desc_ids(lists, order="group")


def get_mapped_blocks(self, block_ids, block_size_ratio):
    return nd.kernel_blocks(block_ids if block_ids.size else [], int(block_size_ratio))


def _map_block_ids_for_block_size_ratio(self, local_block_ids, remote_block_ids, block_size_ratio):
    mapped, remote = [], [list(g) for g in remote_block_ids]
    for i, rem in enumerate(remote):
        loc = list(local_block_ids[i]) if local_block_ids else []
        if not _state(self._group_spec_types[i]):
            loc = nd.kernel_blocks(loc, int(block_size_ratio)).tolist()[: len(rem)]
        mapped.append(loc)
    return (mapped, remote) if any(mapped) else ([], remote)


def _logical_to_kernel_block_ids(self, block_ids, ratio):
    if ratio == 1:
        return block_ids
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import get_representative_spec_type

    out = []
    for i, group in enumerate(block_ids):
        spec = self.kv_cache_config.transfer_groups[i].kv_cache_spec
        out.append(
            group if _state(get_representative_spec_type(spec)) else nd.kernel_blocks(list(group), int(ratio)).tolist()
        )
    return out


def _block_ids_by_region(block_ids, region_group_ids):
    lists = [list(g) for g in block_ids]
    if not region_group_ids:
        return []
    top = max([b for g in lists for b in g], default=0) + 1
    named = {int(g) for g in region_group_ids}
    use = [x if -1 in named or g in named else [] for g, x in enumerate(lists)]  # an unserved group is an error
    lay = _ids_layout([top] * len(region_group_ids), [None if g == -1 else (int(g),) for g in region_group_ids])
    out = [[] for _ in region_group_ids]
    for d in lay.desc_ids(use, order="region").tolist():
        region, block = lay.locate(d)
        out[region].append(block)
    return out


# ------------------------------------------------------------------ positions
_KV = (nd.Section("kv", (nd.Axis("token", 0, 1),), 1),)


def _pair(src_cp=(0, 1), dst_cp=(0, 1)):
    def side(cp):
        return nd.Layout([nd.Region("kv", 0, 1, MAX, groups=(0,), sections=_KV)], cp_rank=cp[0], cp_size=cp[1])

    return nd.DlistPair(side(src_cp), side(dst_cp))


def _apply_dcp_prefix_caching(
    self,
    local_ids,
    remote_ids,
    remote_rank,
    local_dcp_size,
    local_dcp_rank,
    remote_dcp_size,
    local_num_computed_blocks,
    num_remote_blocks=None,
):
    local_ids, start = list(local_ids), int(local_num_computed_blocks)
    me = nd.Layout([nd.Region("kv", 0, 1, MAX, sections=_KV)], cp_rank=local_dcp_rank, cp_size=local_dcp_size)
    if num_remote_blocks is not None:  # allocation padding: entries before global position num_remote_blocks
        local_ids = (
            local_ids[: max(0, me.skip_before(num_remote_blocks) - start)]
            if hasattr(me, "skip_before")
            else local_ids[: max(0, -(-(num_remote_blocks - local_dcp_rank) // local_dcp_size) - start)]
        )
    pair = _pair((remote_rank % remote_dcp_size, remote_dcp_size), (local_dcp_rank, local_dcp_size))
    rem, loc = pair.desc_ids([nd.Blocks(list(remote_ids))], [nd.Blocks(local_ids, skip=start)], order="given")
    if num_remote_blocks is not None:
        # is every wanted block delivered?  nixldesc leaves out what has no partner and does not say so
        full = nd.Blocks(range(-(-num_remote_blocks // remote_dcp_size) if num_remote_blocks else 0))
        want, _ = pair.desc_ids([full], [nd.Blocks(local_ids, skip=start)], order="given")
        if len(loc) < len(want):
            raise ValueError("remote blocks do not cover the local ones")
    return loc.tolist(), rem.tolist()


def _suffix(decode, prefill):
    """decode holds the uncached end of prefill's sequence."""
    src, dst = _pair().desc_ids(
        [nd.Blocks(list(prefill))], [nd.Blocks(list(decode), skip=len(prefill) - len(decode))], order="given"
    )
    return dst.tolist(), src.tolist()


def _apply_prefix_caching_by_region(
    self,
    decode_block_ids,
    prefill_block_ids,
    *,
    num_computed_blocks=None,
    num_remote_blocks=None,
    remote_rank=0,
    remote_dcp_size=1,
):
    assert len(decode_block_ids) == len(prefill_block_ids)
    if not any(decode_block_ids):
        return [[] for _ in decode_block_ids], [[] for _ in decode_block_ids]
    if num_computed_blocks is not None:
        assert num_remote_blocks is not None and len(num_computed_blocks) == len(decode_block_ids)
        got = [
            _apply_dcp_prefix_caching(
                self, d, p, remote_rank, self.dcp_size, self.dcp_rank, remote_dcp_size, c, num_remote_blocks
            )
            for d, p, c in zip(decode_block_ids, prefill_block_ids, num_computed_blocks, strict=False)
        ]
    else:
        got = [_suffix(d, p) for d, p in zip(decode_block_ids, prefill_block_ids, strict=False)]
    return [d for d, _ in got], [p for _, p in got]


def _apply_prefix_caching(
    self, decode_block_ids, prefill_block_ids, decode_physical_per_logical, prefill_physical_per_logical
):
    out_d, out_p = [], []
    for i, p in enumerate(prefill_block_ids):
        d = decode_block_ids[i]
        state = self._has_mamba and _state(self._group_spec_types[i])
        tail = (
            not self._has_mamba
            or len(d) == len(p)
            or (len(d) < len(p) and (state or decode_physical_per_logical == prefill_physical_per_logical))
        )
        if not self._has_mamba:
            assert len(d) <= len(p)
        elif state:
            assert len(d) - len(p) <= 1
        elif not tail:
            assert abs(len(d) - len(p)) <= decode_physical_per_logical + prefill_physical_per_logical
        if tail and not d and p:
            # vLLM: prefill[-0:], the whole list, not the empty one
            dd, pp = [], list(p)
        elif tail:
            dd, pp = _suffix(d, p)
        else:
            src, dst = _pair().desc_ids([nd.Blocks(list(p))], [nd.Blocks(list(d))], order="given")
            dd, pp = dst.tolist(), src.tolist()
        out_d.append(dd), out_p.append(pp)
    return out_d + [list(g) for g in decode_block_ids[len(out_d) :]], out_p


# ------------------------------------------------------------------ ranks
def compute_tp_mapping(
    transfer_topology, remote_tp_size, group_spec_types, remote_dcp_size=1, head_sharded_kv_heads=None
):
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.tp_mapping import TPMapping

    t = transfer_topology
    d_tp, d, p_tp = int(t.tp_size), int(t.tp_rank), int(remote_tp_size)
    mla = bool(t.is_mla) and head_sharded_kv_heads is None
    heads = int(head_sharded_kv_heads or t.total_num_kv_heads)
    size = 1 if mla else heads
    d_cp = int(t.dcp_size) if _is_int(getattr(t, "dcp_size", 1)) else 1

    def layout(tp, rank, cp):
        h = nd.shard_range(size, tp, rank)
        return nd.Layout(
            [
                nd.Region(
                    "kv",
                    0,
                    h[1] - h[0],
                    1,
                    sections=(nd.Section("kv", (nd.Axis("token", 0, 1), nd.Axis("head", *h)), 1),),
                )
            ],
            cp_rank=rank % cp,
            cp_size=cp,
        )

    if remote_dcp_size > 1 or d_cp > 1:
        there = {r: layout(p_tp, r, remote_dcp_size) for r in range(p_tp)}
        attn = list(nd.plan(layout(d_tp, d, d_cp), there, dst_rank=d, dst_size=d_tp))
        readers = max(nd.reader_counts([layout(d_tp, x, d_cp) for x in range(d_tp)], there).values())
    else:
        attn = list(nd.source_ranks(size, d_tp, d, p_tp))
        everyone = [r for x in range(d_tp) for r in nd.source_ranks(size, d_tp, x, p_tp)]
        readers = max(collections.Counter(everyone).values())
    state = []
    if any(_state(s) for s in group_spec_types):
        state = list(nd.source_ranks(max(d_tp, p_tp), d_tp, d, p_tp))
        if d_tp >= p_tp and state != attn:
            state = list(attn)
    ranks = sorted(set(attn) | set(state))

    def first(r):
        return nd.shard_range(heads, p_tp, r)[0]

    slot = {first(r): i for i, r in enumerate(attn)}
    offset = 0
    if not mla and d_tp > p_tp:
        mine, theirs = nd.shard_range(heads, d_tp, d), nd.shard_range(heads, p_tp, attn[0])
        offset = (mine[0] - theirs[0]) // (mine[1] - mine[0])
    return TPMapping(
        source_ranks_per_group=tuple(tuple(state) if _state(s) else tuple(attn) for s in group_spec_types),
        all_source_ranks=tuple(ranks),
        rank_to_attention_slot={r: slot.get(first(r), 0) for r in ranks},
        rank_offset_factor=offset,
        local_consumers=readers,
    )
