"""A plan in the forms that people deploy and verify it with. Nothing is decided here."""

import json
import shlex
from collections.abc import Iterator

from planner.command import MODEL, flags, joined, options
from planner.engine_config import EngineConfig
from planner.plan_file import SavedPlan, TraceOrigin
from planner.search import SEARCHED
from traces.requests import WHOLE, PrefixHashes, RequestTrace
from traces.selection import selection_sentence

CHUNK_TOKENS = 512
"""Prompt tokens per id in an exported trace that says nothing about shared prompts."""
HELM_KEYS = {
    "enable_prefix_caching": "enablePrefixCaching",
    "enable_chunked_prefill": "enableChunkedPrefill",
    "max_model_len": "maxModelLen",
    "max_num_seqs": "maxNumSeqs",
}
"""Flags that the chart has keys of its own for; the others go into `extraArgs`."""


def config_yaml(config: EngineConfig, model: str = MODEL) -> str:
    """A file for `vllm serve --config`."""
    lines = [f"model: {json.dumps(model)}"]
    lines += [f"{name.replace('_', '-')}: {json.dumps(value)}" for name, value in flags(config).items()]
    return "\n".join(lines) + "\n"


def container_args(config: EngineConfig, model: str = MODEL) -> str:
    """The `args` of a Kubernetes container whose entrypoint is `vllm serve`, as the vllm/vllm-openai image has it."""
    words = [model, *(word for option in options(flags(config)) for word in option)]
    return "args:\n" + "".join(f"  - {json.dumps(word)}\n" for word in words)


def helm_values(config: EngineConfig, model: str = MODEL) -> str:
    """Values for the chart of vLLM's production stack.

    Source
    ------
    vllm-project/production-stack, helm/values.yaml and helm/templates/deployment-vllm-multi.yaml: the chart turns
    prefix caching off unless `enablePrefixCaching` says otherwise, so both switches are always written.
    """
    values = flags(config)
    for name in ("enable_prefix_caching", "enable_chunked_prefill"):
        values[name] = getattr(config, name)
    own = {key: values.pop(name) for name, key in HELM_KEYS.items() if name in values}
    extra = [word for option in options(values) for word in option]
    return (
        "# Helm replaces lists whole: put vllmConfig into your own entry of modelSpec.\n"
        "servingEngineSpec:\n"
        "  modelSpec:\n"
        '  - name: "vllm"\n'
        f"    modelURL: {json.dumps(model)}\n"
        "    vllmConfig:\n"
        + "".join(f"      {key}: {json.dumps(value)}\n" for key, value in own.items())
        + "      extraArgs:\n"
        + "".join(f"      - {json.dumps(word)}\n" for word in extra)
    )


def bench_command(origin: TraceOrigin, model: str = MODEL, trace_file: str | None = None) -> str:
    """The `vllm bench serve` command that offers the planned traffic to a running server.

    Parameters
    ----------
    origin : TraceOrigin
        The planned traffic.
    model : str
    trace_file : str, optional
        The traffic as `timed_trace` wrote it: every request is then sent at its own time. Without, requests of mean
        length are sent at the mean rate, which is gentler than real traffic.

    Source
    ------
    vLLM 0.32, vllm/benchmarks/serve.py and vllm/benchmarks/datasets/datasets.py (TimedTrace).
    """
    if trace_file is not None:
        traffic = [
            f"--dataset-name timed_trace --dataset-path {shlex.quote(trace_file)}",
            f"--timed-trace-chunk-hash-size {origin.hash_block_tokens or CHUNK_TOKENS}",
        ]
    else:
        rate = f"{origin.requests_per_s:.6g}" if origin.span_s else "inf"
        prompt, output = (
            max(1, round(total / origin.num_requests)) for total in (origin.prompt_tokens_sum, origin.output_tokens_sum)
        )
        traffic = [
            f"--dataset-name random --random-input-len {prompt} --random-output-len {output}",
            f"--request-rate {rate} --ignore-eos",
        ]
    return joined(
        f"vllm bench serve --model {model}",
        [
            *traffic,
            f"--num-prompts {origin.num_requests}",
            "--percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,99",
            "--save-result --save-detailed --result-filename measured.json",
        ],
    )


def timed_trace(trace: RequestTrace) -> str:
    """A trace for `vllm bench serve --dataset-name timed_trace`: one JSON object a line, times in seconds.

    vLLM makes up the prompt from its ids and stops where they end, so every started chunk has one. Chunks that the
    trace has no id for get one of their own: they are shared with nobody.
    """
    hashes = trace.prefix_hashes
    chunk = CHUNK_TOKENS if hashes is None else hashes.block_tokens
    own = _unused_ids(hashes)
    lines = []
    for i in range(len(trace)):
        known = [] if hashes is None else hashes.ids[hashes.offsets[i] : hashes.offsets[i + 1]].tolist()
        num_chunks = -(-int(trace.prompt_tokens[i]) // chunk)
        ids = known[:num_chunks] + [next(own) for _ in range(num_chunks - len(known))]
        row = {
            "timestamp": float(trace.arrival_s[i]),
            "input_length": int(trace.prompt_tokens[i]),
            "output_length": int(trace.output_tokens[i]),
            "hash_ids": ids,
        }
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


def _unused_ids(hashes: PrefixHashes | None) -> Iterator[int]:
    """Ids that stand for no prompt yet."""
    number = 0 if hashes is None or len(hashes.ids) == 0 else int(hashes.ids.max()) + 1
    while True:
        yield number
        number += 1


def provenance(saved: SavedPlan) -> tuple[str, ...]:
    """What a plan stands on, one fact a line: for the screen and for the head of every file that leaves."""
    plan = saved.recommendation
    config = plan.today.engine_config
    today = ", ".join(f"{name} {getattr(config, name)}" for name in SEARCHED)
    part = "" if saved.trace.selection == WHOLE else f", of it {selection_sentence(saved.trace.selection)}"
    return (
        f"trace: {saved.trace.name} (digest {saved.trace.digest[:12]}), {saved.trace.num_requests:,} requests{part}",
        f"step times: {saved.model.source}",
        f"targets: {saved.words.target}",
        f"today: {today}",
        f"KV cache: {config.num_kv_tokens:,} tokens; simulated: vLLM {saved.vllm_version}; "
        f"planner {saved.product_version}",
    )


def head(saved: SavedPlan) -> str:
    """The same as comment lines; a line break in a file's name ends no comment."""
    return "".join(f"# {' '.join(line.split())}\n" for line in provenance(saved))
