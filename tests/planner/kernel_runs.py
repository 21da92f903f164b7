"""Runs of the kernel and of the naive model in one common form, so that they can be held against each other."""

import numpy as np
from naive import Engine

from planner import kernel
from planner.replay import NO_CAPS, NO_NOISE, WHOLE_REPLAY, Beginnings, kernel_blocks
from planner.step_time import StepTime
from traces.requests import PrefixHashes

NAMES = {
    "sched_ns": "sched_ns",
    "start_ns": "start_ns",
    "end_ns": "end_ns",
    "running": "num_running",
    "waiting": "num_waiting",
    "free_blocks": "num_free_blocks",
    "prefill_tokens": "prefill_tokens",
    "decodes": "num_decodes",
    "num_draft_tokens": "num_draft_tokens",
}
HELD_BY = {
    kernel.NO_SEAT: "no seat",
    kernel.NO_BUDGET: "no budget",
    kernel.NO_BLOCKS: "no blocks",
    kernel.NOT_WHOLE: "not whole",
    kernel.PREEMPTION: "preemption",
}
"""The naive model's words for what keeps the head of the waiting queue from starting."""
METHODS = {None: (0, 0, False), "ngram": (0, 0, False), "ngram_gpu": (0, 0, False)}
"""Method → (lookahead per draft, extra inputs, drops the last hit block)."""
METHODS |= {"eagle": (1, 0, True), "draft_model": (1, 1, False)}

CAPTURED_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Batches that vLLM captures as CUDA graphs."""


def run_kernel(
    requests: list[dict],
    config: dict,
    step_time: StepTime,
    max_steps: int = 200_000,
    id_block_tokens: int = 16,
    tracks_blocks: bool | None = None,
    windows: tuple[tuple[int, int], ...] = WHOLE_REPLAY,
    caps: np.ndarray = NO_CAPS,
) -> dict:
    """`requests` and `config` as in the recordings, arrivals in `arrival_ns`; the result in their form, too."""
    tracks_blocks = config["enable_prefix_caching"] if tracks_blocks is None else tracks_blocks
    order = sorted(range(len(requests)), key=lambda i: (requests[i]["arrival_ns"], i))
    rows = np.zeros(len(requests), kernel.REQUEST)
    for row, i in zip(rows, order, strict=True):
        request = requests[i]
        row["arrival_ns"] = request["arrival_ns"]
        row["prompt_tokens"] = row["num_known"] = request["prompt"]
        row["output_tokens"] = request["out"]
        row["max_tokens"] = request.get("max_tokens", request["out"])
        row["priority"] = request.get("priority", 0)
        row["identity"] = i
        row["classes"] = 1
    limit = limits(config, tracks_blocks)
    ids = [requests[i].get("ids") or () for i in order]
    offsets = np.cumsum([0, *map(len, ids)])
    shared = PrefixHashes(np.array([c for row in ids for c in row], np.int64), offsets, id_block_tokens).shared
    num_tokens = np.minimum(shared.num_ids * id_block_tokens, rows["prompt_tokens"] + rows["output_tokens"])
    beginnings = Beginnings(shared.branch, shared.until * id_block_tokens, np.diff(shared.offsets), num_tokens)
    spans, paths, table = kernel_blocks(rows, beginnings, limit)
    state = np.zeros(1, kernel.ENGINE)
    accept = np.array((config["spec"] or {"accept": [0]})["accept"])
    window_rows = np.array(windows, np.int64).reshape(-1, 2)
    outcome, steps, shared, gaps, events = kernel.replay(
        rows,
        state,
        spans,
        paths,
        table,
        accept,
        limit,
        step_time,
        NO_NOISE,
        window_rows,
        caps.copy(),
        True,
        max_steps,
        np.zeros(1, np.uint8),
    )
    lists = {name: [[] for _ in steps] for name in ("batch", "preempted", "admitted", "finished", "held")}
    token_step = [[] for _ in requests]
    for step, kind, row, tokens in events.tolist():
        i = order[row]
        if kind in (kernel.PREFILLED, kernel.DECODED):
            lists["batch"][step].append([i, tokens])
        elif kind == kernel.PREEMPTED:
            lists["preempted"][step].append(i)
        elif kind in (kernel.ADMITTED, kernel.RESUMED):
            lists["admitted"][step].append([i, tokens, int(kind == kernel.RESUMED)])
        elif kind == kernel.FINISHED:
            lists["finished"][step].append(i)
        elif kind == kernel.HELD:
            lists["held"][step].append([i, HELD_BY[tokens]])
        else:
            token_step[i].append(step)
    columns = {theirs: steps[ours].tolist() for theirs, ours in NAMES.items()}
    columns |= lists | {name: [sorted(x) for x in lists[name]] for name in ("preempted", "admitted")}
    preemptions = dict(zip(order, rows["num_preemptions"].tolist(), strict=True))
    return {
        "outcome": ["done", "stalled", "step_limit", "cancelled", "needs_blocks", "livelock", "stopped"][outcome],
        "end_ns": int(state["now_ns"][0]),
        "steps": columns,
        "token_step": token_step,
        "preemptions": [preemptions[i] for i in range(len(requests))],
        "unfinished": sorted(order[j] for j in np.flatnonzero(~rows["is_finished"])),
        "rows": rows,
        "step_rows": steps,
        "shared_gaps": shared,
        "gap_rows": gaps,
        "events": events,
        "num_free_blocks": int(state["num_free_blocks"][0]),
    }


def run_naive(
    requests: list[dict], config: dict, step_time: StepTime, max_steps: int = 200_000, id_block_tokens: int = 16
) -> dict:
    def step_ns(
        num_seqs: int, prefill_tokens: int, kv_read: int, attention: float, num_drafts: int, kv_prefill: int
    ) -> int:
        """The equation once more, in plain Python, so that the kernel's is judged as well."""
        further = step_time.per_prefill_attention_ns * attention + step_time.per_kv_prefill_token_ns * kv_prefill
        if prefill_tokens:
            further += step_time.any_prefill_ns + step_time.per_kv_token_mixed_ns * kv_read
            for kink in (128, 256, 512):
                num_beyond = max(prefill_tokens + num_seqs - kink, 0)
                further += getattr(step_time, f"per_token_beyond_{kink}_ns") * num_beyond
        else:
            further += step_time.per_kv_token_ns * kv_read
            further += step_time.per_seq_beyond_128_ns * max(num_seqs - 128, 0)
            captured = next((size for size in CAPTURED_SIZES if size >= num_seqs), num_seqs)
            further += step_time.per_padding_seq_ns * (captured - num_seqs)
        whole = step_time.base_ns + step_time.per_seq_ns * num_seqs + step_time.per_draft_token_ns * num_drafts
        return whole + step_time.per_prefill_token_ns * prefill_tokens + round(further)

    result = Engine(requests, config, step_ns, max_steps, id_block_tokens).run()
    steps = result["steps"]
    for step in steps:
        step["num_draft_tokens"] = sum(step["drafts"])
    names = [*NAMES, "batch", "preempted", "admitted", "finished", "held"]
    return result | {"steps": {name: [step[name] for step in steps] for name in names}}


def limits(config: dict, tracks_blocks: bool) -> kernel.Limits:
    """The kernel's limits from a configuration in the recordings' form, past all start-up checks."""
    spec = config["spec"] or {"method": None, "k": 0}
    lookahead, extra_inputs, drops_last_hit = METHODS[spec["method"]]
    return kernel.Limits(
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_num_scheduled_tokens=config["max_num_scheduled_tokens"] or config["max_num_batched_tokens"],
        max_num_seqs=config["max_num_active_seqs"] or config["max_num_seqs"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        is_threshold_adaptive=config["long_prefill_token_threshold_adaptive"],
        is_prefill_chunked=config["enable_chunked_prefill"],
        max_model_len=config["max_model_len"],
        block_size=config["block_size"],
        num_gpu_blocks=config["num_blocks"],
        watermark_blocks=int(config["watermark"] * config["num_blocks"]),
        reserves_full_isl=config["scheduler_reserve_full_isl"],
        is_async=config["async_scheduling"],
        by_priority=config["policy"] == "priority",
        caches_prefixes=config["enable_prefix_caching"],
        tracks_blocks=tracks_blocks,
        num_spec_tokens=spec["k"],
        num_lookahead_tokens=lookahead * spec["k"],
        num_extra_inputs=extra_inputs,
        drops_last_hit=drops_last_hit,
        evicts_fewest_computed=config.get("victim") == "fewest_computed",
        swaps=config.get("swap_ns_per_token") is not None,
        swap_ns_per_token=config.get("swap_ns_per_token") or 0,
    )
