"""Made-up traffic has the rate, the lengths, the bursts and the shared prefixes that were asked for."""

from dataclasses import replace

import numpy as np
import pytest
from shared import shared_path

from traces.answers import ReadAnswers
from traces.prefixes import reuse_share
from traces.read import read_trace
from traces.requests import Selection
from traces.selection import dispersion, select
from traces.synthetic import TRUTH
from traces.workload import CHAT_WITH_LONG_PROMPTS, MAX_REQUESTS, PRESETS, Lengths, Workload, make_trace

PLAIN = Workload(Lengths(1000, 0.5, 1, 100_000), Lengths(100, 0.5, 1, 10_000), rate_rps=10.0, duration_s=2000.0)
PUBLIC = {
    "Conversation, as in the Azure 2023 trace": ("azure_llm_2023_conv.parquet", None),
    "General service, as ServeGen m-large": ("servegen_m_large_generated.parquet", "s"),
    "Reasoning, as ServeGen DeepSeek-R1": ("servegen_deepseek_r1_generated.parquet", "s"),
    "Long shared conversations, as Mooncake": ("mooncake_conversation.parquet", "ms"),
}


def test_the_example_is_a_chat_with_long_prompts_well_below_capacity() -> None:
    trace = make_trace(CHAT_WITH_LONG_PROMPTS)
    assert 600 <= len(trace) <= 2_000
    assert 0.04 < (trace.prompt_tokens >= 4_000).mean() < 0.12
    assert trace.prompt_tokens.max() + trace.output_tokens.max() < TRUTH.max_model_len
    assert trace.prompt_tokens.sum() / trace.span_s * TRUTH.per_prefill_token_s < 0.4


def test_the_seed_decides() -> None:
    assert make_trace(PLAIN).digest == make_trace(PLAIN).digest
    assert make_trace(PLAIN).digest != make_trace(replace(PLAIN, seed=8)).digest


@pytest.mark.parametrize("gap_cv", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("swing", [0.0, 0.8])
def test_rate_and_variation_are_as_asked(gap_cv: float, swing: float) -> None:
    trace = make_trace(replace(PLAIN, gap_cv=gap_cv, swing=swing))
    assert len(trace) == pytest.approx(20_000, rel=0.08)
    assert np.all(np.diff(trace.arrival_s) >= 0)
    if swing == 0.0:
        gaps_s = np.diff(trace.arrival_s)
        assert gaps_s.std() / gaps_s.mean() == pytest.approx(gap_cv, rel=0.1, abs=0.01)
    else:
        first, second = np.histogram(trace.arrival_s, [0, 1000, 2000])[0]
        assert first / second == pytest.approx((1 + 2 * swing / np.pi) / (1 - 2 * swing / np.pi), rel=0.15)


def test_clumps_bring_no_more_requests_than_asked() -> None:
    """Over many windows: begun with an arrival, each would have (cv² − 1)/2 = 49.5 of 500 too many."""
    clumpy = replace(PLAIN, duration_s=50.0, gap_cv=10.0)
    num = []
    for seed in range(600):
        try:
            num.append(len(make_trace(replace(clumpy, seed=seed))))
        except ValueError:  # a window without any
            num.append(0)
    assert np.mean(num) == pytest.approx(500, abs=30)


def test_lengths_are_as_asked() -> None:
    trace = make_trace(replace(PLAIN, long_share=0.2, long_prompt=Lengths(50_000, 0.1, 40_000, 60_000)))
    is_long = trace.prompt_tokens >= 40_000
    assert is_long.mean() == pytest.approx(0.2, abs=0.01)
    assert np.median(trace.prompt_tokens[~is_long]) == pytest.approx(1000, rel=0.03)
    assert np.std(np.log(trace.prompt_tokens[~is_long])) == pytest.approx(0.5, rel=0.03)
    assert np.median(trace.output_tokens) == pytest.approx(100, rel=0.03)


def test_bursts_come_on_top_at_their_moments() -> None:
    plain, bursts = make_trace(PLAIN), make_trace(replace(PLAIN, burst_size=50, burst_every_s=100.0))
    assert len(bursts) == len(plain) + 19 * 50
    _, count = np.unique(bursts.arrival_s, return_counts=True)
    assert (count >= 50).sum() == 19
    assert dispersion(bursts.arrival_s, 1.0) > 2 * dispersion(plain.arrival_s, 1.0)


def test_prefixes_are_shared_as_asked() -> None:
    trace = make_trace(replace(PLAIN, prefix_share=0.5, prefix_tokens=320, num_prefixes=4))
    assert trace.prefix_hashes is not None
    hashes = trace.prefix_hashes
    first = hashes.ids[hashes.offsets[:-1]]
    begins, count = np.unique(first, return_counts=True)
    assert (count > 1).sum() == 4
    assert count[count > 1].sum() / len(trace) == pytest.approx(0.5, abs=0.02)
    shared = np.minimum(trace.prompt_tokens, 320) // 16 * 16
    assert reuse_share(hashes, trace.prompt_tokens) == pytest.approx(
        0.5 * shared.sum() / trace.prompt_tokens.sum(), rel=0.03
    )
    assert len(begins) == len(trace) - count[count > 1].sum() + 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rate_rps": 0.0}, "above 0"),
        ({"rate_rps": 1e9}, f"allowed: {MAX_REQUESTS:,}"),
        ({"gap_cv": -1.0}, "variation of gaps"),
        ({"swing": 2.0}, "swing"),
        ({"long_share": 1.5}, "shares"),
        ({"prefix_share": 0.5}, "prefixes need"),
        ({"prompt": Lengths(10, 0.5, 20, 30)}, "prompt lengths"),
        ({"rate_rps": 1e-9, "duration_s": 1.0}, "no request"),
    ],
)
def test_nonsense_is_refused_in_words(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_trace(replace(PLAIN, **change))


@pytest.mark.data
@pytest.mark.parametrize("name", PUBLIC)
def test_a_preset_is_like_the_trace_it_is_named_after(name: str) -> None:
    file_name, unit = PUBLIC[name]
    path = shared_path("data", "traces", file_name)
    public = select(read_trace(path, path.name, ReadAnswers(arrival_unit=unit)), Selection(spread_seed=0))
    made = make_trace(replace(PRESETS[name], duration_s=3600.0))
    assert len(made) / made.span_s == pytest.approx(len(public) / public.span_s, rel=0.1)
    for tokens in ("prompt_tokens", "output_tokens"):
        ours, theirs = (np.quantile(getattr(trace, tokens), [0.5, 0.9]) for trace in (made, public))
        assert ours[0] == pytest.approx(theirs[0], rel=0.15), tokens
        assert ours[1] == pytest.approx(theirs[1], rel=0.35), tokens
    if public.prefix_hashes is not None:
        assert made.prefix_hashes is not None
        theirs_share = reuse_share(public.prefix_hashes, public.prompt_tokens)
        assert reuse_share(made.prefix_hashes, made.prompt_tokens) == pytest.approx(theirs_share, abs=0.08)
