"""A server log made from known truth, and the samples: the example of the product, and data for tests.

`python -m traces.synthetic` writes a trace and a log into `traces/samples`; the same seeds give the same values.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from traces.workload import CHAT_WITH_LONG_PROMPTS, make_trace

SAMPLES = Path(__file__).parent / "samples"
"""Where the shipped samples lie."""

TRACE_SAMPLE = SAMPLES / "chat_long_prompts.parquet"
"""The shipped trace."""

LOG_SAMPLE = SAMPLES / "server.log"
"""The shipped server log."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The server that `server_log` pretends to be."""

    base_s: float = 0.009
    """Every step, seconds."""
    per_seq_s: float = 0.000_05
    """Per scheduled request, seconds."""
    per_prefill_token_s: float = 0.000_06
    """Per prefill token, seconds."""
    per_kv_token_s: float = 0.000_000_02
    """Per context token that decodes read, seconds."""
    noise: float = 0.02
    """Standard deviation of the multiplicative noise."""
    num_gpu_blocks: int = 40_001
    """KV blocks, the null block included."""
    block_size: int = 16
    """Tokens per KV block."""
    max_num_batched_tokens: int = 8192
    """Today's flag, tokens."""
    max_num_seqs: int = 256
    """Today's flag, requests."""
    long_prefill_token_threshold: int = 0
    """Today's flag, tokens."""
    max_model_len: int = 32_768
    """Tokens."""


TRUTH = Truth()
"""The server behind the shipped log."""


def server_log(seed: int = 11, num_steps: int = 1_500, truth: Truth = TRUTH) -> str:
    """Write the log of a server that takes exactly as long as `truth` says, within its noise.

    Parameters
    ----------
    seed : int
        Of the random generator.
    num_steps : int
        Iteration lines.
    truth : Truth
        The coefficients and facts behind the log.

    Returns
    -------
    str
        Start-up lines and iteration lines as vLLM 0.32 prints them.
    """
    rng = np.random.default_rng(seed)
    # The batch drifts as load does; about two steps in five carry prompt tokens.
    batch = np.clip(np.rint(24 + 20 * np.sin(np.arange(num_steps) / 90) + rng.normal(0, 8, num_steps)), 1, 64)
    num_decodes = batch.astype(np.int64)
    mixed = rng.random(num_steps) < 0.4
    prefill = np.where(mixed, np.rint(np.exp(rng.uniform(np.log(16), np.log(2_048), num_steps))), 0).astype(np.int64)
    context = num_decodes * rng.integers(200, 2_500, num_steps)
    step_s = (
        truth.base_s
        + truth.per_seq_s * (num_decodes + mixed)
        + truth.per_prefill_token_s * prefill
        + truth.per_kv_token_s * context
    ) * np.clip(rng.normal(1, truth.noise, num_steps), 0.9, 1.1)
    # A request's last block is half full on average.
    num_blocks = -(-context // truth.block_size) + num_decodes // 2 - (-prefill // truth.block_size)
    usage = num_blocks / (truth.num_gpu_blocks - 1)
    lines = _start_up(truth)
    clock_s = 0.0
    for step in range(num_steps):
        clock_s += float(step_s[step])
        minute, second = divmod(int(clock_s), 60)
        lines.append(
            f"(APIServer pid=4101) INFO 03-02 09:{16 + minute:02d}:{second:02d} [loggers.py:199] Engine 000: "
            f"Iteration({step}): {int(mixed[step])} context requests, {prefill[step]} context tokens, "
            f"{num_decodes[step]} generation requests, {num_decodes[step]} generation tokens, "
            f"iteration elapsed time: {step_s[step] * 1e3:.2f} ms, GPU KV cache usage: {usage[step] * 100:.1f}%"
        )
    return "\n".join(lines) + "\n"


def write_samples(folder: Path = SAMPLES) -> None:
    """Write the shipped samples."""
    trace = make_trace(CHAT_WITH_LONG_PROMPTS)
    columns = {
        "arrival_s": trace.arrival_s,
        "prompt_tokens": trace.prompt_tokens.astype(np.int32),
        "output_tokens": trace.output_tokens.astype(np.int32),
    }
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / TRACE_SAMPLE.name, compression="zstd")
    (folder / LOG_SAMPLE.name).write_text(server_log(), encoding="utf-8")


def _start_up(truth: Truth) -> list[str]:
    """Lines that a server prints before it serves."""
    num_tokens = truth.num_gpu_blocks * truth.block_size
    args = {
        "model_tag": "example-8b",
        "model": "example-8b",
        "max_model_len": truth.max_model_len,
        "block_size": truth.block_size,
        "enable_prefix_caching": False,
        "enable_logging_iteration_details": True,
        "max_num_batched_tokens": truth.max_num_batched_tokens,
        "max_num_seqs": truth.max_num_seqs,
        "long_prefill_token_threshold": truth.long_prefill_token_threshold,
        "async_scheduling": False,
    }
    api, core = "(APIServer pid=4101) INFO 03-02 09:15:", "(EngineCore pid=4133) INFO 03-02 09:15:"
    return [
        f"{api}02 [api_utils.py:286] vLLM API server version 0.32.0",
        f"{api}02 [api_utils.py:286] non-default args: {args}",
        f"{api}02 [scheduler.py:307] Chunked prefill is enabled with "
        f"max_num_batched_tokens={truth.max_num_batched_tokens}.",
        f"{core}09 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='example-8b', "
        f"max_seq_len={truth.max_model_len}, enable_prefix_caching=False, enable_chunked_prefill=True",
        f"{core}41 [kv_cache_utils.py:2327] GPU KV cache size: {num_tokens:,} tokens, Maximum concurrency for "
        f"{truth.max_model_len:,} tokens per request: {num_tokens / truth.max_model_len:.2f}x",
        f"{api}58 [launcher.py:57] Application startup complete.",
    ]


if __name__ == "__main__":
    write_samples()
