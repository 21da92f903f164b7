"""The options of vLLM 0.32's own parser that an export may use, as that parser takes them.

Source: vLLM 0.32, vllm/engine/arg_utils.py (EngineArgs.add_cli_args) and vllm/benchmarks/serve.py.
"""

import argparse


def serve_parser() -> argparse.ArgumentParser:
    """`vllm serve`."""
    parser = argparse.ArgumentParser(prog="vllm serve", exit_on_error=False)
    parser.add_argument("model_tag", nargs="?")
    for name in (
        *("--max-num-batched-tokens", "--max-num-seqs", "--long-prefill-token-threshold", "--block-size"),
        *("--max-model-len", "--max-num-scheduled-tokens", "--max-num-active-seqs"),
    ):
        parser.add_argument(name, type=int)
    for name in (
        *("--async-scheduling", "--enable-prefix-caching", "--scheduler-reserve-full-isl"),
        *("--enable-chunked-prefill", "--long-prefill-token-threshold-adaptive"),
    ):
        parser.add_argument(name, action=argparse.BooleanOptionalAction)
    parser.add_argument("--watermark", type=float)
    parser.add_argument("--scheduling-policy", choices=["fcfs", "priority"])
    return parser


def bench_parser() -> argparse.ArgumentParser:
    """`vllm bench serve`."""
    parser = argparse.ArgumentParser(prog="vllm bench serve", exit_on_error=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dataset-name", choices=["random", "timed_trace"])
    parser.add_argument("--dataset-path")
    for name in ("--timed-trace-chunk-hash-size", "--random-input-len", "--random-output-len", "--num-prompts"):
        parser.add_argument(name, type=int)
    parser.add_argument("--request-rate", type=float)
    for name in ("--ignore-eos", "--save-result", "--save-detailed"):
        parser.add_argument(name, action="store_true")
    for name in ("--percentile-metrics", "--metric-percentiles", "--result-filename"):
        parser.add_argument(name)
    return parser


def words_of_yaml(text: str) -> list[str]:
    """A flat `--config` file as the words that vLLM makes of it: a switch that is off needs its `--no-` form."""
    import yaml

    words = []
    for name, value in yaml.safe_load(text).items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif name == "model":
            words.append(str(value))
        else:
            words += [f"--{name}", str(value)]
    return words
