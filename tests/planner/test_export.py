"""Manifests and benchmarks, as the programs take them that read them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given
from test_command import CONFIGS, config_of, exported, words_of
from test_plan_file import saved_plan
from traces_by_hand import chat_trace, trace_of
from vllm_parser import bench_parser, words_of_yaml

from planner.engine_config import EngineConfig
from planner.export import (
    bench_command,
    config_yaml,
    container_args,
    head,
    helm_values,
    provenance,
    timed_trace,
)
from planner.plan_file import trace_origin
from traces.read import read_trace
from traces.requests import PrefixHashes, RequestTrace

TODAY = EngineConfig(max_num_batched_tokens=8192, max_num_seqs=64, num_gpu_blocks=4001)


@given(CONFIGS)
def test_every_form_starts_a_server_with_the_same_settings(config):
    assert config_of(words_of_yaml(config_yaml(config))) == exported(config)
    assert config_of(yaml.safe_load(container_args(config))["args"]) == exported(config)
    assert config_of(words_of_helm(helm_values(config))) == exported(config)


def words_of_helm(text: str) -> list[str]:
    """What the chart's template makes of the values of its first model."""
    (spec,) = yaml.safe_load(text)["servingEngineSpec"]["modelSpec"]
    config = spec["vllmConfig"]
    assert all(isinstance(word, str) for word in config["extraArgs"])
    words = [spec["modelURL"]]
    if "enableChunkedPrefill" in config:
        words.append("--enable-chunked-prefill" if config["enableChunkedPrefill"] else "--no-enable-chunked-prefill")
    words.append("--enable-prefix-caching" if config.get("enablePrefixCaching") else "--no-enable-prefix-caching")
    for key, option in (("maxModelLen", "--max-model-len"), ("maxNumSeqs", "--max-num-seqs")):
        if key in config:
            words += [option, str(config[key])]
    return words + config["extraArgs"]


@pytest.mark.parametrize("model", ["true", "8", "org/model-7b:v1", "null"])
def test_a_models_name_stays_a_name_in_yaml(model):
    assert yaml.safe_load(config_yaml(TODAY, model))["model"] == model
    assert yaml.safe_load(container_args(TODAY, model))["args"][0] == model


def parsed_bench(command: str) -> dict:
    """What vLLM's benchmark takes from the command."""
    words = words_of(command)
    assert words[:3] == ["vllm", "bench", "serve"]
    return vars(bench_parser().parse_args(words[3:]))


def test_benchmark_at_the_mean_rate():
    trace = chat_trace(120)
    given_to = parsed_bench(bench_command(trace_origin(trace), "m"))
    assert given_to["model"] == "m"
    assert given_to["num_prompts"] == 120
    assert given_to["request_rate"] == pytest.approx(119 / trace.span_s, rel=1e-4)
    assert given_to["random_input_len"] == round(trace.prompt_tokens.mean())
    assert given_to["random_output_len"] == round(trace.output_tokens.mean())
    assert given_to["save_detailed"]
    at_once = parsed_bench(bench_command(trace_origin(trace_of((0.0, 5, 1), (0.0, 7, 2)))))
    assert at_once["request_rate"] == float("inf")


def test_benchmark_with_the_traffic_itself():
    given_to = parsed_bench(bench_command(trace_origin(chat_trace(120)), trace_file="my trace.jsonl"))
    assert given_to["dataset_path"] == "my trace.jsonl"
    assert given_to["dataset_name"] == "timed_trace"
    assert given_to["timed_trace_chunk_hash_size"] == 512
    assert given_to["num_prompts"] == 120
    assert given_to["request_rate"] is None


def rows_of(trace: RequestTrace) -> list[dict]:
    return [json.loads(line) for line in timed_trace(trace).splitlines()]


def test_exported_traffic_reads_back_as_the_same_requests(tmp_path):
    trace = chat_trace(60)
    path = tmp_path / "t.jsonl"
    path.write_text(timed_trace(trace))
    again = read_trace(path, "t.jsonl")
    assert again.arrival_s == pytest.approx(trace.arrival_s - trace.arrival_s[0], abs=1e-9)
    assert again.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    assert again.output_tokens.tolist() == trace.output_tokens.tolist()


def test_prompts_without_hashes_are_made_up_whole_and_share_nothing():
    rows = rows_of(trace_of((0.0, 512, 3), (0.25, 513, 1), (0.5, 1, 1)))
    assert [len(row["hash_ids"]) for row in rows] == [1, 2, 1]
    ids = [number for row in rows for number in row["hash_ids"]]
    assert len(set(ids)) == len(ids)
    assert [row["timestamp"] for row in rows] == [0.0, 0.25, 0.5]


def test_prompts_with_hashes_share_what_they_share_and_no_more():
    """16-token blocks; the first prompt's last tokens have no id, the second has an id beyond its prompt."""
    hashes = PrefixHashes(np.array([7, 8, 7, 9, 3]), np.array([0, 2, 5]), 16)
    trace = RequestTrace(np.array([0.0, 1.0]), np.array([40, 20]), np.array([2, 2]), np.arange(2), prefix_hashes=hashes)
    first, second = (row["hash_ids"] for row in rows_of(trace))
    assert first[:2] == [7, 8]
    assert len(first) == 3
    assert first[2] not in hashes.ids
    assert second == [7, 9]
    command = bench_command(trace_origin(trace), trace_file="t.jsonl")
    assert parsed_bench(command)["timed_trace_chunk_hash_size"] == 16


def test_provenance_names_file_digest_targets_and_version():
    saved = saved_plan()
    text = "\n".join(provenance(saved))
    for part in ("chats.parquet", saved.trace.digest[:12], "by hand", "80 ms", "8192", "vLLM 0.32"):
        assert part in text


def test_a_line_break_in_a_name_ends_no_comment():
    saved = saved_plan()
    odd = replace(saved, trace=replace(saved.trace, name="a\nrm -rf /\r\nb"))
    assert all(line.startswith("# ") for line in head(odd).splitlines())
    assert head(odd).splitlines()[0].startswith("# trace: a rm -rf / b (digest")
