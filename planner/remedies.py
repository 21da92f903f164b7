"""What to record next: for everything that a step log leaves open, the lines to paste that would tell it."""

import math
from dataclasses import dataclass

from planner.errors import Gap, UnfitProblem, UnfitStepLog
from planner.step_time import StepTimeFit
from traces.steps import ServerFacts

LOG_STEPS = "vllm serve MODEL --enable-logging-iteration-details --logging-config.formatter json"
"""Each step a line, stamped to the millisecond."""
RECORD_STEPS = (
    "pip install ./traces/recorder && STEP_RECORDER_DIR=/recordings vllm serve MODEL --enable-logging-iteration-details"
)
"""The stat-logger plug-in: each step with its true period, context and requests."""
BENCH = "vllm bench serve --model MODEL --dataset-name random "
ROUGH_INTERVAL = 0.2
"""Half the width of an interval as a share of the value: above it the coefficient is known roughly only."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """How to fill one gap."""

    gap: Gap
    """What is missing."""
    sentence: str
    """What to do, and why."""
    serve: str = LOG_STEPS
    """How to start vLLM for the recording; empty where nothing new has to be recorded, like the next two."""
    plug_in: str = RECORD_STEPS
    """The same with the recorder, which needs no log."""
    bench: str = ""
    """The load that shows what is missing."""


def what_to_record(calibration: StepTimeFit | UnfitStepLog) -> tuple[Remedy, ...]:
    """Everything that a calibration leaves open, with how to record it; nothing when the log tells all.

    Parameters
    ----------
    calibration : StepTimeFit or UnfitStepLog
        A fit, which may not cover all that the server's flags allow, or the refusal of one.
    """
    if isinstance(calibration, UnfitStepLog):
        gaps = [problem.gap for problem in calibration.problems if isinstance(problem, UnfitProblem)]
        return tuple(_remedy(gap, calibration.facts) for gap in dict.fromkeys(gaps))
    return tuple(_remedy(gap, calibration.facts) for gap in _gaps(calibration))


def _gaps(fit: StepTimeFit) -> list[Gap]:
    """What a fit leaves open."""
    names = {coefficient.name for coefficient in fit.coefficients}
    p = next(coefficient for coefficient in fit.coefficients if coefficient.name == "per_prefill_token")
    facts, covered = fit.facts, fit.covered
    is_open = {
        Gap.PREFILL_SIZES: p.high - p.low > 2 * ROUGH_INTERVAL * p.value,
        Gap.HIDDEN_TIMES: math.isnan(fit.overhead_s) and facts.async_scheduling is True,
        Gap.SAME_BATCH: "per_seq" not in names,
        Gap.LARGER_BATCHES: facts.max_num_seqs is not None and covered.max_num_seqs < facts.max_num_seqs,
        Gap.LARGER_PREFILLS: facts.max_num_batched_tokens is not None
        and covered.max_prefill_tokens < facts.max_num_batched_tokens // 2,
        Gap.CONTEXT: math.isnan(covered.max_kv_decode_tokens),
        Gap.SINGLE_STEPS: fit.noise is None,
    }
    return [gap for gap, value in is_open.items() if value]


def _remedy(gap: Gap, facts: ServerFacts) -> Remedy:
    """How to fill a gap on this server."""
    seats, budget = facts.max_num_seqs or 256, facts.max_num_batched_tokens or 2048
    # Lengths vary by up to 0.9 of themselves about the one given, and have to fit the context together with the output.
    room = (facts.max_model_len or 1 << 20) - 64
    varied = f"{BENCH}--random-input-len {min(budget, room // 2)} --random-range-ratio 0.9 --random-output-len 64"
    streams = f"{BENCH}--random-input-len 256 --random-output-len 512"
    return {
        Gap.TOO_FEW_STEPS: Remedy(
            gap,
            "Record some minutes of traffic, yours or this one.",
            bench=f"{streams} --random-range-ratio 0.9 --request-rate 2 --num-prompts 300",
        ),
        Gap.NO_DECODE_ONLY_STEPS: Remedy(
            gap,
            "Record while requests stream and no prompt arrives: such steps alone show d.",
            bench=f"{streams} --request-rate 0.5 --num-prompts 60",
        ),
        Gap.NO_PREFILL: Remedy(
            gap,
            "Record while prompts of different lengths arrive: only they show p.",
            bench=f"{varied} --request-rate 1 --num-prompts 200",
        ),
        Gap.PREFILL_SIZES: Remedy(
            gap,
            "Record prompts of many lengths, longer ones too: p is the slope of step time over prefill tokens.",
            bench=f"{varied} --request-rate 1 --num-prompts 400",
        ),
        Gap.HIDDEN_TIMES: Remedy(
            gap,
            "Record the time from step to step: by the recorder, by the stamps of a JSON log, or without asynchronous "
            "scheduling.",
            serve=f"{LOG_STEPS} --no-async-scheduling",
            bench=f"{varied} --request-rate 1 --num-prompts 200",
        ),
        Gap.UNIT: Remedy(
            gap,
            "Put the unit into the name of the time column (step_ms, step_s, step_us); nothing new has to be recorded.",
            serve="",
            plug_in="",
        ),
        Gap.MIXED_REGIMES: Remedy(
            gap,
            "Split the file where the message says, or record anew one server under one command line.",
            bench=f"{streams} --random-range-ratio 0.9 --request-rate 2 --num-prompts 300",
        ),
        Gap.SAME_BATCH: Remedy(
            gap,
            "Record a load that grows: with one batch size the time per request cannot be told from the base.",
            bench=f"{streams} --num-prompts 400 --ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 16",
        ),
        Gap.LARGER_BATCHES: Remedy(
            gap,
            f"Record steps of up to {seats:,} requests, the seats of this server: larger batches than were recorded "
            "are extrapolated.",
            bench=f"{streams} --request-rate inf --max-concurrency {seats} --num-prompts {4 * seats}",
        ),
        Gap.LARGER_PREFILLS: Remedy(
            gap,
            f"Record steps of up to {budget:,} prefill tokens, the budget of this server: larger ones than were "
            "recorded are extrapolated.",
            bench=f"{BENCH}--random-input-len {min(2 * budget, room)} --random-output-len 16 --request-rate 0.5 "
            "--num-prompts 60",
        ),
        Gap.CONTEXT: Remedy(
            gap,
            "Record how much context the decodes read, with contexts of different lengths: on GPUs their time grows "
            "with it.",
            bench=f"{BENCH}--random-input-len {min(4000, room // 2)} --random-range-ratio 0.9 --random-output-len 64 "
            "--request-rate 1 --num-prompts 200",
        ),
        Gap.SINGLE_STEPS: Remedy(
            gap,
            "Record step by step: averages do not show how single steps scatter, and the tails of latencies need that.",
            bench=f"{streams} --random-range-ratio 0.9 --request-rate 2 --num-prompts 300",
        ),
    }[gap]
