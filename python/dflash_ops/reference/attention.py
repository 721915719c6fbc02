import math
from itertools import pairwise

import torch
from torch import Tensor

from dflash_ops import Attended, Status


def tree_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    block_table: Tensor,
    cu_rows: Tensor,
    ctx_lens: Tensor | None = None,
    kv_lens: Tensor | None = None,
    req_rows: Tensor | None = None,
    table_start: Tensor | None = None,
    kv_start: Tensor | None = None,
    tree_nodes: Tensor | None = None,
    mask_bits: Tensor | None = None,
    depth: Tensor | None = None,
    causal: bool = True,
    window_left: int = -1,
    window_right: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    null_page: int = -1,
    status: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Attended:
    """Computes and returns in `dtype`: the dense softmax over each row's keys."""
    num_rows, num_heads, k_dim = q.shape
    batch, num_states = len(cu_rows) - 1, len(block_table)
    page_size, group = k_cache.shape[1], num_heads // k_cache.shape[2]
    out = torch.zeros(num_rows, num_heads, v_cache.shape[3], dtype=dtype)
    lse = torch.full((num_rows, num_heads), -math.inf, dtype=dtype)
    status = torch.zeros(batch, dtype=torch.int32) if status is None else status
    k_all, v_all = _dequantised(k_cache, k_scale, dtype), _dequantised(v_cache, v_scale, dtype)
    scale = k_dim**-0.5 if scale is None else scale
    lens = ctx_lens if kv_lens is None else kv_lens
    assert lens is not None
    rows_taken = 0

    for b, (begin, end) in enumerate(pairwise(cu_rows.tolist())):
        state = b if req_rows is None else int(req_rows[b])
        in_range = 0 <= begin <= end <= num_rows and -1 <= state < num_states
        if not in_range or begin < min(end, rows_taken):
            status[b] |= Status.OUT_OF_RANGE
            continue
        if state < 0 or begin == end:
            continue
        ctx = int(lens[state]) - (0 if kv_lens is None else end - begin)
        start = 0 if table_start is None else int(table_start[state])
        table = block_table[state].long()
        if start < 0 or not start <= ctx <= start + len(table) * page_size:
            status[b] |= Status.OUT_OF_RANGE
            continue
        rows_taken = end
        first_key = 0 if kv_start is None else max(0, int(kv_start[state]))

        depths = list(range(end - begin))
        is_tree = tree_nodes is None or int(tree_nodes[b]) > 0
        if mask_bits is not None and depth is not None and is_tree:
            depths = depth[begin:end].tolist()
            is_good = [0 <= d < 65536 and i < 256 for i, d in enumerate(depths)]
            if not all(is_good):
                status[b] |= Status.BAD_TREE
                depths = depths[: is_good.index(False)] or [0]

        def slots(first, last, start=start, table=table):
            """Page and offset of sequence indices; page -1 where there is none."""
            index = torch.arange(first, last) - start
            entry = torch.div(index, page_size, rounding_mode="floor")
            padded = torch.cat([table, torch.tensor([-1])])  # for entries outside the table
            page = padded[torch.where((entry >= 0) & (entry < len(table)), entry, len(table))]
            exists = (page >= 0) & (page < len(k_cache)) & (page != null_page)
            return page.where(exists, -1), index % page_size

        own_slots = list(zip(*slots(ctx, ctx + len(depths)), strict=True))
        for i, row in enumerate(range(begin, begin + len(depths))):
            position = ctx + depths[i]
            low = first_key if window_left < 0 else max(first_key, position - window_left)
            high = 2**62 if window_right < 0 else position + window_right
            pages, offsets = slots(min(low, ctx), max(min(low, ctx), min(high + 1, ctx)))
            if (pages < 0).any():
                status[b] |= Status.OUT_OF_RANGE
            own: dict = {}  # position -> (page, offset)
            for j, d in enumerate(depths):
                sees = j <= i or not causal
                if mask_bits is not None and is_tree:
                    words = mask_bits[row].tolist()
                    sees = j < 32 * len(words) and bool(words[j // 32] >> (j % 32) & 1)
                if not sees or not low <= ctx + d <= high:
                    continue
                if own_slots[j][0] < 0:
                    status[b] |= Status.OUT_OF_RANGE
                    continue
                if ctx + d in own:
                    status[b] |= Status.BAD_TREE
                own[ctx + d] = own_slots[j]
            own_places = torch.tensor([own[at] for at in sorted(own)], dtype=torch.int64)
            places = torch.cat([torch.stack([pages, offsets], 1), own_places.reshape(-1, 2)])
            pages, offsets = places[places[:, 0] >= 0].T
            if len(pages) == 0:
                continue
            k = k_all[pages, offsets].repeat_interleave(group, dim=1)
            v = v_all[pages, offsets].repeat_interleave(group, dim=1)
            scores = torch.einsum("hd,phd->hp", q[row].to(dtype), k) * scale
            if softcap > 0:
                scores = softcap * torch.tanh(scores / softcap)
            lse[row] = scores.logsumexp(dim=1)
            if sinks is not None:
                scores = torch.cat([scores, sinks.to(dtype)[:, None]], dim=1)
                v = torch.cat([v, torch.zeros_like(v[:1])])
            out[row] = torch.einsum("hp,phd->hd", scores.softmax(dim=1), v)
    return Attended(out, lse)


def _dequantised(cache: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    values = cache.to(dtype)
    if scale is None:
        return values
    scale = scale.to(dtype)
    return values * (scale[:, None] if scale.dim() == 1 else scale[..., None])


def merge_states(
    out_a: Tensor,
    lse_a: Tensor,
    out_b: Tensor,
    lse_b: Tensor,
    *,
    sinks: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Attended:
    """Computes and returns in `dtype`: a softmax over the two sides and the sink."""
    sides = torch.stack([lse_a, lse_b], -1).to(dtype)
    lse = sides.logsumexp(-1)
    sink = torch.full_like(lse, -math.inf) if sinks is None else sinks.to(dtype).expand_as(lse)
    total = torch.cat([sides, sink[..., None]], -1).logsumexp(-1, keepdim=True)
    is_empty = sides == -math.inf
    weights = (sides - total).exp().masked_fill(is_empty, 0)
    outs = torch.stack([out_a, out_b], 2).to(dtype).masked_fill(is_empty[..., None], 0)
    return Attended((weights[..., None] * outs).sum(2), lse)
