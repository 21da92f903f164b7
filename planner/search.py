"""Choosing flags: which settings meet the targets, which of them is best, and why the others lost."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.candidates import Candidate, Reason, Rejection, check_asked, evaluate
from planner.confidence import Confidence, can_resample, evaluate_draw, nearness, odds
from planner.engine_config import EngineConfig, changed_flags, flag_faults
from planner.errors import Cancelled
from planner.executors import somewhere
from planner.kernel import step_ns
from planner.replay import Replay, replay, requests_that_never_run
from planner.slo import Slo
from planner.step_time import Covered, Model, SavedModel, StepTime, StepTimeFit, step_time_from_seconds, step_time_of
from traces.requests import RequestTrace

HOPELESS_LOAD = 1.1
"""Offered load above which the search does not go through every setting."""
LOOK_S = 0.2
"""How long the search waits before it looks whether it was cancelled."""
NUM_DRAWS = 20
"""Draws of the coefficients, and of the traffic, under which a choice is judged again."""
GIVES_UP = 0.1
"""Share of the objective that is given up, at most, for a choice whose targets hold more often."""
NUM_RUNNERS_UP = 2
"""Settings that are judged again beside the best by the objective."""
ROOMY = 1 << 20
"""A budget and seats that no other flag is too large for."""
SEARCHED = ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold")
"""The flags that are always chosen; everything else of the context is fixed unless `More` opens it."""


class Objective(StrEnum):
    """What decides among the settings that meet every target."""

    LOWEST_TTFT = "lowest_ttft"
    """The lowest TTFT at the target's percentile."""
    MOST_HEADROOM = "most_headroom"
    """The smallest gap at the target's percentile."""
    HIGHEST_THROUGHPUT = "highest_throughput"
    """The most output tokens per second."""
    PARETO = "pareto"
    """None: what no other setting beats in both gap and TTFT is for people to choose from; the fewest changes first."""


@dataclass(frozen=True, slots=True)
class More:
    """What the user opens: values of the three flags instead of the usual ones, and further flags to search.

    Without values the three are tried at the usual ones, and any other flag stays as it is today.
    """

    max_num_batched_tokens: tuple[int, ...] = ()
    """Budgets, tokens; today's and vLLM's default are tried as well, as with the next two."""
    max_num_seqs: tuple[int, ...] = ()
    """Seats, requests."""
    long_prefill_token_threshold: tuple[int, ...] = ()
    """Thresholds, tokens; 0 = off."""
    num_gpu_blocks: tuple[int, ...] = ()
    """KV blocks, the null block included: what `gpu_memory_utilization` decides."""
    max_num_active_seqs: tuple[int | None, ...] = ()
    """Admission caps, requests; None = the seats."""
    long_prefill_token_threshold_adaptive: tuple[bool, ...] = ()
    """Whether the threshold grows to budget ÷ requests."""
    watermark: tuple[float, ...] = ()
    """Shares of the KV blocks kept free at admission, 0–1."""
    enable_chunked_prefill: tuple[bool, ...] = ()
    """Whether a prompt may be split."""
    scheduling_policy: tuple[str, ...] = ()
    """ "fcfs", "priority"."""
    async_scheduling: tuple[bool, ...] = ()
    """Whether steps are scheduled ahead."""


NO_MORE = More()
"""The three flags alone."""
MORE = tuple(field.name for field in fields(More) if field.name not in SEARCHED)
"""The flags that are searched only where they are opened."""


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Values tried for each flag; combinations that vLLM refuses are left out."""

    max_num_batched_tokens: tuple[int, ...]
    """Budgets, tokens."""
    max_num_seqs: tuple[int, ...]
    """Seats, requests."""
    long_prefill_token_threshold: tuple[int, ...]
    """Thresholds, tokens; 0 = off."""
    more: More = NO_MORE
    """Further flags that were opened."""

    @property
    def searched(self) -> tuple[str, ...]:
        """The flags that are chosen."""
        return *SEARCHED, *(name for name in MORE if getattr(self.more, name))

    def values(self, name: str) -> tuple[Any, ...]:
        """What is tried for a searched flag."""
        return tuple(getattr(self if name in SEARCHED else self.more, name))


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The answer, with everything it stands on."""

    best: Candidate | None
    """The choice; None when no candidate meets every target."""
    closest: Candidate
    """The candidate that comes nearest to the targets; `best` when there is one."""
    today: Candidate
    """Today's flags."""
    vllm_default: Candidate
    """The flags `vllm serve` would take by itself on this GPU."""
    candidates: tuple[Candidate, ...]
    """Everything tried, `today` and `vllm_default` included, ordered by budget, seats, threshold, further flags."""
    losers: tuple[tuple[Candidate, Rejection], ...]
    """Every candidate but the best, with the first reason it lost, in the order of `candidates`."""
    closed_form_budget: int | None
    """(T − d)/p + decodes: the budget at which a full step takes the target; None when d alone exceeds it."""
    typical_decode_s: float
    """d at this trace's mean batch and context, seconds."""
    typical_num_seqs: float
    """That mean batch: decodes per decoding step under today's flags."""
    probability_met: float | None
    """Share of the draws under which the best still meets every target, its `Confidence.together`; None = unknown."""
    extrapolated_share: float | None
    """Share of the best's steps outside the range that the calibration covered; None = range unknown."""
    offered_load: float
    """Least time the engine needs for the trace ÷ span of the arrivals; above 1 no setting keeps up. NaN = unknown."""
    slo: Slo
    """The targets."""
    objective: Objective
    """What decided among those that meet them."""
    space: SearchSpace
    """What was searched."""
    step_time: StepTime
    """The model charged."""
    model_source: str
    """Where the model came from."""
    trace_digest: str
    """Digest of the trace replayed."""
    num_replays: int
    """Replays run, draws not counted; candidates whose flags provably cannot act share one."""
    num_stopped: int = 0
    """Of these, how many were stopped early, because a target could no longer be met."""
    finalists: tuple[Confidence, ...] = ()
    """What was judged again, the best by the objective first; runners-up only where that one does not always hold."""


Progress = Callable[[int, int, Candidate | None], None]
"""Called with (replays done, replays planned, the newest candidate)."""


def recommend(
    trace: RequestTrace,
    model: Model,
    today: EngineConfig,
    slo: Slo,
    *,
    default_flags: tuple[int, int],
    space: SearchSpace | None = None,
    more: More = NO_MORE,
    objective: Objective = Objective.LOWEST_TTFT,
    executor: Executor | None = None,
    on_progress: Progress | None = None,
    cancel: npt.NDArray[np.uint8] | None = None,
    stops_early: bool = True,
) -> Recommendation:
    """Find the flags that meet `slo` on `trace` and are best by `objective`.

    A replay is stopped once a target is missed for good, since such a setting cannot win. Whatever is compared goes to
    its end: today's flags, vLLM's default, what is one notch away from the choice, all its budgets; and everything
    where nothing meets the targets, where the load is hopeless, or where the choice is for people.

    The best is judged again under draws of the coefficients and of the traffic. Where it does not hold in all of them,
    so are the `NUM_RUNNERS_UP` that stay farthest from the limits among those that come within `GIVES_UP` of it by the
    objective, under the same draws; the choice is the one that holds most often, of equals the best by the objective.
    With `Objective.PARETO` the choice is for people, and only judged.

    Parameters
    ----------
    trace : RequestTrace
    model : Model
        A fit, also a saved one, brings its covered range and its uncertainty along, bare coefficients neither.
    today : EngineConfig
        What is fixed (KV blocks, admission rules, …) together with the three flags in use now.
    slo : Slo
    default_flags : (int, int)
        vLLM's default budget and seats on this GPU.
    space : SearchSpace, optional
        Default: `default_space` with `more`.
    more : More
        What to search beside or instead of the usual, where no space is given.
    objective : Objective
    executor : concurrent.futures.Executor, optional
        Where replays run; threads on this machine by default. The result does not depend on it.
    on_progress : callable, optional
    cancel : (1,) uint8, optional
        Work stops soon after another thread makes it non-zero.
    stops_early : bool
        Off, every replay goes on to its end. The choice does not depend on it.

    Raises
    ------
    BadFlags
        Today's settings cannot be replayed, or no request can run under them.
    BadPlan
        A target is for requests that the trace does not have.
    Cancelled
        After `cancel`.
    """
    step_time = step_time_of(model)
    covered = None if isinstance(model, StepTime) else model.covered
    with somewhere(executor) as where:
        replays = _Replays(trace, step_time, slo, where, on_progress, cancel)
        now = replays.run([today])[0]
        num_seqs = now.summary.mean_decodes if now.summary.num_gaps else 1.0
        kv_tokens = now.summary.mean_kv_decode_tokens if now.summary.num_gaps else 0.0
        decode_s = decode_step_s(step_time, num_seqs, kv_tokens)
        budget = closed_form_budget(step_time, slo.itl_s, num_seqs, kv_tokens)
        space = space or default_space(today, budget, default_flags, longest_sequence(trace), more)
        check_asked(trace, replace(today, num_gpu_blocks=max(today.num_gpu_blocks, *space.more.num_gpu_blocks, 0)), slo)
        usual = vllm_default(today, default_flags)
        load = offered_load(trace, step_time, today, max(space.max_num_batched_tokens))
        # Overloaded beyond doubt: what cannot be carried is shown under a few settings, not under all.
        tried = _most_efficient(space) if load > HOPELESS_LOAD and now.summary.is_unstable else space
        replays.stops_early = stops_early and objective is not Objective.PARETO and tried is space
        replays.run_all(_outward(_configs(tried, today, usual), budget or min(space.max_num_batched_tokens)))
        # A smaller KV cache turns requests away: what is won by serving fewer is not won.
        least_left_out = min(c.summary.num_never_run for c in replays.known.values())
        fitting = [c for c in in_order(replays.known.values()) if c.meets]
        fitting = [c for c in fitting if c.summary.num_never_run == least_left_out]
        front = pareto_front(fitting)
        eligible = front if objective is Objective.PARETO else fitting
        ranked = sorted(eligible, key=lambda c: _rank(c, objective, today))
        best, finalists = replays.choose(model, ranked, objective)
        replays.complete(replays.known if best is None else [usual, *_beside(tried, best.engine_config)])
        candidates = in_order(replays.known.values())
        closest = best or min((c for c in candidates if c.violations), key=_distance)
    share = None
    if covered is not None:
        share = extrapolated_share(replay(trace, closest.engine_config, step_time), covered)
    return Recommendation(
        best=best,
        closest=closest,
        today=now,
        vllm_default=replays.known[usual],
        candidates=candidates,
        losers=tuple(
            (
                c,
                _left_out(c, least_left_out)
                or _surer(c, best, ranked, finalists, slo)
                or _rejection(c, best, objective, slo, c in front),
            )
            for c in candidates
            if c is not best
        ),
        closed_form_budget=budget,
        typical_decode_s=decode_s,
        typical_num_seqs=num_seqs,
        probability_met=next((f.together for f in finalists if best and f.engine_config == best.engine_config), None),
        extrapolated_share=share,
        slo=slo,
        objective=objective,
        offered_load=load,
        space=tried,
        step_time=step_time,
        model_source="coefficients given by hand" if isinstance(model, StepTime) else model.source,
        trace_digest=trace.digest,
        num_replays=replays.num_replays,
        num_stopped=replays.num_stopped,
        finalists=finalists,
    )


def vllm_default(today: EngineConfig, default_flags: tuple[int, int]) -> EngineConfig:
    """Today's settings with the three flags as vLLM would choose them by itself.

    Where even those would not start beside the other settings, today's flags.

    Source
    ------
    vLLM 0.32, EngineArgs: a defaulted budget is raised to `max_model_len` when chunked prefill is off, defaulted seats
    are lowered to the budget.
    """
    budget, num_seqs = default_flags
    if not today.enable_chunked_prefill and today.max_model_len is not None:
        budget = max(budget, today.max_model_len)
    usual = replace(
        today,
        max_num_batched_tokens=budget,
        max_num_seqs=min(num_seqs, budget),
        long_prefill_token_threshold=0,
    )
    return today if flag_faults(usual) else usual


def decode_step_s(step_time: StepTime, num_seqs: float, kv_decode_tokens: float) -> float:
    """Time d of a decode-only step at a batch size and context, seconds."""
    return float(step_ns.py_func(step_time, round(num_seqs), 0, kv_decode_tokens, 0.0)) / 1e9


def closed_form_budget(step_time: StepTime, itl_s: float, num_seqs: float, kv_decode_tokens: float) -> int | None:
    """Largest budget whose full step, decodes included, stays within the target: (T − d)/p + decodes.

    None when a decode step with any prefill at all already takes longer. Prefill attention is left out: the
    search starts here, it does not end here.
    """
    mixed_ns = float(step_ns.py_func(step_time, round(num_seqs) + 1, 1, kv_decode_tokens, 0.0))
    room_ns = itl_s * 1e9 - mixed_ns
    if room_ns <= 0:
        return None
    return int(room_ns / max(step_time.per_prefill_token_ns, 1)) + 1 + round(num_seqs)


def longest_sequence(trace: RequestTrace) -> int:
    """Most tokens any request ever holds."""
    return int((trace.prompt_tokens + trace.output_tokens).max())


def default_space(
    today: EngineConfig,
    budget: int | None,
    default_flags: tuple[int, int],
    longest_tokens: int,
    more: More = NO_MORE,
) -> SearchSpace:
    """Values around the closed-form budget, vLLM's defaults, powers of two, and today's flags.

    Parameters
    ----------
    today : EngineConfig
    budget : int or None
        The closed-form budget.
    default_flags : (int, int)
        vLLM's default budget and seats on this GPU.
    longest_tokens : int
        Longest sequence of the trace: a threshold above it never acts.
    more : More
        What to try instead, and further flags.
    """
    around = [] if budget is None else [_round(budget * f) for f in (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)]
    budgets = {today.max_num_batched_tokens, default_flags[0], 512, 1024, 2048, 8192, *around}
    seats = {today.max_num_seqs, default_flags[1], 64, 256}
    caps = [] if budget is None else [_round(budget * f) for f in (0.25, 0.5)]
    thresholds = {0, today.long_prefill_token_threshold, *(caps or (256, 512)), 2048}
    longest = min(longest_tokens, today.max_model_len or longest_tokens)
    return SearchSpace(
        more.max_num_batched_tokens or tuple(sorted(b for b in budgets if b <= 65_536)),
        more.max_num_seqs or tuple(sorted(seats)),
        more.long_prefill_token_threshold or tuple(sorted(t for t in thresholds if t < longest)),
        replace(more, **dict.fromkeys(SEARCHED, ())),
    )


def more_flags(wanted: dict[str, tuple[Any, ...]], today: EngineConfig) -> More:
    """What to search beside or instead of the usual.

    Parameters
    ----------
    wanted : dict
        Names out of `MORE` with the values to try, without values the usual ones beside today's; and out of `SEARCHED`.
    today : EngineConfig
    """
    usual: dict[str, tuple[Any, ...]] = {
        "num_gpu_blocks": tuple(1 + round((today.num_gpu_blocks - 1) * share) for share in (0.8, 0.9, 1.1)),
        "max_num_active_seqs": (16, 32, 64, 128, None),
        "watermark": (0.0, 0.01, 0.05),
        "scheduling_policy": ("fcfs", "priority"),
    }

    def tried(name: str) -> tuple[Any, ...]:
        values = dict.fromkeys(wanted[name] or (*usual.get(name, (False, True)), getattr(today, name)))
        return tuple(sorted(values, key=lambda value: (value is None, value)))

    return More(**{name: tried(name) for name in wanted})


def read_more(texts: Iterable[str], today: EngineConfig) -> More:
    """What to search from words such as "watermark", for the usual values, or "watermark=0,0.05".

    Raises
    ------
    ValueError
        Unknown flags or values; says what was found and what is allowed.
    """
    switch = {"on": True, "off": False}
    kinds: dict[str, Callable[[str], Any]] = dict.fromkeys(SEARCHED, int) | {
        "num_gpu_blocks": int,
        "max_num_active_seqs": lambda word: None if word == "none" else int(word),
        "watermark": float,
        "scheduling_policy": {"fcfs": "fcfs", "priority": "priority"}.__getitem__,
    }
    wanted: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, _, words = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in (*SEARCHED, *MORE):
            raise ValueError(f"{text}: known are {', '.join((*SEARCHED, *MORE))}")
        try:
            of_word = kinds.get(name, switch.__getitem__)
            wanted[name] = tuple(of_word(word.strip()) for word in words.split(",") if word.strip())
        except (ValueError, KeyError) as fault:
            raise ValueError(f"{text}: write values as in watermark=0,0.05 or async_scheduling=on,off") from fault
        if name in SEARCHED and not wanted[name]:
            raise ValueError(f"{text}: is searched anyway; write the values to try instead, as in max_num_seqs=32,64")
        # What else is chosen is no fault here.
        roomy = replace(today, max_num_batched_tokens=ROOMY, max_num_seqs=1 if name == SEARCHED[0] else ROOMY)
        faults = [f for value in wanted[name] for f in flag_faults(replace(roomy, **{name: value})) if name in f]
        if faults:
            raise ValueError(f"{text}: {'; '.join(faults)}")
    return more_flags(wanted, today)


def offered_load(trace: RequestTrace, step_time: StepTime, config: EngineConfig, max_num_batched_tokens: int) -> float:
    """Least engine time that the trace needs ÷ span of its arrivals, whatever the three flags.

    Counts, of the requests that can run, every prompt token but one (a last chunk of one token costs no more than a
    decode) once, every later output token as a decode of its whole context, and as few steps as the largest budget
    allows; preemptions, part-full steps and prefill attention come on top. NaN when all arrive at once, or when prefix
    hashes or drafts leave open how much is computed at all.
    """
    if trace.span_s == 0.0 or trace.prefix_hashes is not None or config.speculative_method is not None:
        return float("nan")
    can_run = ~requests_that_never_run(trace, config)
    prompt, output = trace.prompt_tokens[can_run], trace.output_tokens[can_run]
    if config.max_model_len is not None:
        output = np.minimum(output, config.max_model_len - prompt)
    num_decodes = output - 1
    context = num_decodes * (prompt + output / 2)
    least_ns = (
        step_time.base_ns * float(prompt.sum() + num_decodes.sum()) / max_num_batched_tokens
        + step_time.per_seq_ns * float(output.sum())
        + step_time.per_prefill_token_ns * float((prompt - 1).sum())
        + min(step_time.per_kv_token_ns, step_time.per_kv_token_mixed_ns) * float(context.sum())
    )
    return least_ns / 1e9 / trace.span_s


def extrapolated_share(run: Replay, covered: Covered) -> float:
    """Share of the steps of a replay that lie outside the calibrated range, 0–1."""
    steps = run.steps
    outside = (steps["num_scheduled"] > covered.max_num_seqs) | (steps["prefill_tokens"] > covered.max_prefill_tokens)
    if not np.isnan(covered.max_kv_decode_tokens):
        outside |= steps["kv_decode_tokens"] > covered.max_kv_decode_tokens
    return float(outside.mean()) if len(steps) else 0.0


def in_order(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Candidates by budget, seats, threshold, and further flags."""
    return tuple(sorted(candidates, key=lambda c: _order(c.engine_config)))


def one_notch(space: SearchSpace, config: EngineConfig) -> list[tuple[str, EngineConfig]]:
    """Each searched flag at its next lower and its next higher value, the others as in `config`."""
    found = []
    for name in space.searched:
        here = getattr(config, name)
        values = sorted({*space.values(name), here}, key=lambda value: (value is None, value))
        place = values.index(here)
        beside = (*values[max(place - 1, 0) : place], *values[place + 1 : place + 2])
        found += [(name, replace(config, **{name: value})) for value in beside]
    return found


def _beside(space: SearchSpace, config: EngineConfig) -> list[EngineConfig]:
    """What a setting is compared with: one notch on each flag, and every other budget."""
    budgets = [replace(config, max_num_batched_tokens=budget) for budget in space.max_num_batched_tokens]
    return [*(one for _, one in one_notch(space, config)), *budgets]


def _most_efficient(space: SearchSpace) -> SearchSpace:
    """The largest budgets and seats, no threshold: what loses least to fixed costs."""
    return SearchSpace(space.max_num_batched_tokens[-2:], space.max_num_seqs[-1:], (0,))


def _configs(space: SearchSpace, today: EngineConfig, usual: EngineConfig) -> list[EngineConfig]:
    """Every combination that vLLM accepts, today's flags and the defaults among them.

    A threshold at or above the budget never acts; such combinations are the ones with 0 over again.
    """
    combinations = product(*(space.values(name) for name in space.searched))
    configs = [replace(today, **dict(zip(space.searched, values, strict=True))) for values in combinations]
    configs = [c for c in configs if c.long_prefill_token_threshold < c.max_num_batched_tokens]
    return list(dict.fromkeys(c for c in [today, usual, *configs] if not flag_faults(c)))


def _outward(configs: list[EngineConfig], budget: int) -> list[EngineConfig]:
    """From the closed-form budget outward, so that what is tried first is most likely to be the answer."""
    return sorted(configs, key=lambda c: (abs(np.log(c.max_num_batched_tokens / budget)), _order(c)))


def _order(config: EngineConfig) -> tuple[float, ...]:
    """Budget, seats, threshold, and further flags."""
    return (
        config.max_num_batched_tokens,
        config.max_num_seqs,
        config.long_prefill_token_threshold,
        config.num_gpu_blocks,
        config.max_num_active_seqs or config.max_num_seqs,
        config.long_prefill_token_threshold_adaptive,
        config.watermark,
        config.enable_chunked_prefill,
        config.scheduling_policy == "priority",
        config.async_scheduling,
    )


def _round(budget: float) -> int:
    """A multiple of 16 at least 32: what people write, and a whole number of KV blocks."""
    return max(32, int(budget) // 16 * 16)


class _Replays:
    """The candidates known so far, and the executor that makes more of them."""

    def __init__(
        self,
        trace: RequestTrace,
        step_time: StepTime,
        slo: Slo,
        executor: Executor,
        on_progress: Progress | None,
        cancel: npt.NDArray[np.uint8] | None,
    ) -> None:
        self.trace, self.step_time, self.slo = trace, step_time, slo
        self.executor, self.on_progress, self.cancel = executor, on_progress, cancel
        self.known: dict[EngineConfig, Candidate] = {}
        self.num_done, self.num_planned = 0, 0
        self.num_replays, self.num_stopped = 0, 0
        self.stops_early = False

    def run(self, configs: list[EngineConfig]) -> list[Candidate]:
        """Replay each setting; candidates in the order of `configs`, whatever finishes first."""
        self.num_planned = max(self.num_planned, self.num_done + len(configs))
        asked = (self.step_time, self.slo, self.cancel, self.stops_early)
        futures = {self.executor.submit(evaluate, self.trace, c, *asked): c for c in configs}
        for future in self.as_completed(list(futures)):
            self.known[futures[future]] = future.result()
            self.num_done += 1
            self.num_replays += 1
            self.num_stopped += not future.result().is_complete
            if self.on_progress is not None:
                self.on_progress(self.num_done, self.num_planned, future.result())
        return [self.known[c] for c in configs]

    def complete(self, configs: Iterable[EngineConfig]) -> None:
        """Replay to the end what was stopped early."""
        stopped = [c for c in dict.fromkeys(configs) if c in self.known and not self.known[c].is_complete]
        for config in stopped:
            del self.known[config]
        self.stops_early = False
        self.run_all(stopped)

    def as_completed(self, futures: list[Future[Candidate]]) -> Iterator[Future[Candidate]]:
        """Each replay as it comes to its end; those that were not begun are given up when one fails, or on `cancel`.

        A replay of this process looks at `cancel` itself; one on another machine cannot.
        """
        try:
            pending = set(futures)
            while pending:
                done, pending = wait(pending, LOOK_S, FIRST_COMPLETED)
                yield from done
                if self.cancel is not None and self.cancel[0]:
                    raise Cancelled
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def run_all(self, configs: list[EngineConfig]) -> None:
        """Replay the settings, most seats first; those that cannot differ from a known one share its result."""
        self.num_planned = self.num_done + len(configs)
        for num_seqs in sorted({c.max_num_seqs for c in configs}, reverse=True):
            these = [c for c in configs if c.max_num_seqs == num_seqs and c not in self.known]
            # The largest budget first, with the rest alike: what its steps never carry, no smaller budget can cut.
            by_budget = sorted(these, key=lambda c: c.max_num_batched_tokens)
            largest = {replace(c, max_num_batched_tokens=0): c for c in by_budget}.values()
            for group in (list(largest), [c for c in these if c not in largest]):
                unknown = [c for c in group if not self.share_result(c)]
                self.num_planned -= len(group) - len(unknown)
                self.run(unknown)

    def share_result(self, config: EngineConfig) -> bool:
        """Take over the result of a replay that `config` provably repeats; False if there is none.

        One that was stopped early stands in only where `config` may be stopped as well.

        A replay with at least these seats and this budget, the same threshold and everything else the same,
        repeats under `config` when it never ran more requests at once than `config` has seats, and never put
        as many tokens into a step as `config` has budget (or the budgets are equal): every decision then comes
        out the same.
        """
        if config.long_prefill_token_threshold_adaptive:
            return False  # that threshold is computed from the budget, so a budget acts even where it never binds
        for known, candidate in self.known.items():
            if (
                (candidate.is_complete or self.stops_early)
                and candidate.summary.peak_running <= config.max_num_seqs <= known.max_num_seqs
                and (
                    candidate.summary.max_step_tokens < config.max_num_batched_tokens <= known.max_num_batched_tokens
                    or config.max_num_batched_tokens == known.max_num_batched_tokens
                )
                and set(changed_flags(known, config)) <= {"max_num_batched_tokens", "max_num_seqs"}
            ):
                self.known[config] = replace(candidate, engine_config=config)
                return True
        return False

    def choose(
        self, model: Model, ranked: list[Candidate], objective: Objective
    ) -> tuple[Candidate | None, tuple[Confidence, ...]]:
        """The choice among settings that meet every target, best by the objective first, and how sure each is."""
        step_times = None if isinstance(model, StepTime) or len(model.draws) == 0 else self.drawn_step_times(model)
        seeds = tuple(range(NUM_DRAWS)) if can_resample(self.trace) else None
        if not ranked or (step_times is None and seeds is None):
            return (ranked[0] if ranked else None), ()
        judged = [ranked[0]]
        found = [Confidence(c.engine_config, *odds(self.draw(c, step_times, seeds), self.slo)) for c in judged]
        if found[0].together < 1.0 and objective is not Objective.PARETO:
            judged += _runners_up(ranked, objective, self.slo)
            found += [Confidence(c.engine_config, *odds(self.draw(c, step_times, seeds), self.slo)) for c in judged[1:]]
        place = max(range(len(judged)), key=lambda i: (found[i].together, -i))
        found[place] = self.alone(found[place], judged[place], step_times, seeds)
        return judged[place], tuple(found)

    def alone(
        self,
        sure: Confidence,
        candidate: Candidate,
        step_times: tuple[StepTime, ...] | None,
        seeds: tuple[int, ...] | None,
    ) -> Confidence:
        """The choice under each of the two by itself as well; where only one is known, that was judged already."""
        if step_times is None:
            return replace(sure, traffic=sure.together)
        if seeds is None:
            return replace(sure, step_times=sure.together)
        return replace(
            sure,
            step_times=odds(self.draw(candidate, step_times, None), self.slo)[0],
            traffic=odds(self.draw(candidate, None, seeds), self.slo)[0],
        )

    def drawn_step_times(self, model: StepTimeFit | SavedModel) -> tuple[StepTime, ...]:
        """Coefficients from all over the joint sample."""
        rows = np.linspace(0, len(model.draws) - 1, NUM_DRAWS).astype(int)
        return tuple(step_time_from_seconds(draw) for draw in model.draws[rows])

    def draw(
        self, candidate: Candidate, step_times: tuple[StepTime, ...] | None, seeds: tuple[int, ...] | None
    ) -> list[Candidate]:
        """The setting under each draw; of None, what is known."""
        futures = [
            self.executor.submit(
                evaluate_draw,
                self.trace,
                candidate.engine_config,
                self.step_time if step_times is None else step_times[i],
                self.slo,
                None if seeds is None else seeds[i],
                self.cancel,
            )
            for i in range(NUM_DRAWS)
        ]
        self.num_planned += NUM_DRAWS
        for _ in self.as_completed(futures):
            self.num_done += 1
            if self.on_progress is not None:
                self.on_progress(self.num_done, self.num_planned, candidate)
        return [future.result() for future in futures]


def pareto_front(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Candidates that no other beats: no lower gap without higher TTFT, each at its target's percentile."""

    def pair(candidate: Candidate) -> tuple[float, float]:
        gap_s = candidate.summary.itl_at_percentile_s
        return candidate.summary.ttft_at_percentile_s, gap_s if candidate.summary.num_gaps else 0.0

    front: list[Candidate] = []
    for candidate in sorted(candidates, key=pair):
        ttft, gap = pair(candidate)
        if not front or gap < pair(front[-1])[1] or (ttft, gap) == pair(front[-1]):
            front.append(candidate)
    return front


def _rank(candidate: Candidate, objective: Objective, today: EngineConfig) -> tuple[float, ...]:
    """Sort key among candidates that meet every target; equal results go to the fewest changes."""
    summary = candidate.summary
    ttft = (summary.ttft_at_percentile_s, summary.ttft.p50_s)
    num_changes = len(changed_flags(today, candidate.engine_config))
    first = {
        Objective.LOWEST_TTFT: ttft,
        Objective.MOST_HEADROOM: (summary.itl_at_percentile_s, *ttft),
        Objective.HIGHEST_THROUGHPUT: (-summary.output_tokens_per_s, *ttft),
        Objective.PARETO: (num_changes, *ttft),
    }[objective]
    return (*first, summary.itl_at_percentile_s, num_changes, *_order(candidate.engine_config))


def _runners_up(ranked: list[Candidate], objective: Objective, slo: Slo) -> list[Candidate]:
    """Those farthest from the limits that give up little of the objective; of settings that act alike, the first."""
    best = _measure(ranked[0], objective)
    different = {_behaviour(c): c for c in ranked[::-1]}
    near = [c for c in different.values() if _measure(c, objective) <= best + GIVES_UP * abs(best)]
    farthest = sorted((c for c in near if c is not ranked[0]), key=lambda c: (nearness(c, slo), ranked.index(c)))
    return sorted(farthest[:NUM_RUNNERS_UP], key=ranked.index)


def _behaviour(candidate: Candidate) -> tuple[object, ...]:
    """What settings have in common that act alike on the trace."""
    summary = candidate.summary
    return summary.itl, summary.ttft, summary.e2e, summary.output_tokens_per_s


def _measure(candidate: Candidate, objective: Objective) -> float:
    """What the objective wants small."""
    return _rank(candidate, objective, candidate.engine_config)[0]


def _left_out(candidate: Candidate, least: int) -> Rejection | None:
    """Whether a candidate meets the targets for fewer requests than others can run."""
    num = candidate.summary.num_never_run
    return Rejection(Reason.TURNS_AWAY, num, least, "requests") if candidate.meets and num > least else None


def _surer(
    candidate: Candidate,
    best: Candidate | None,
    ranked: list[Candidate],
    finalists: tuple[Confidence, ...],
    slo: Slo,
) -> Rejection | None:
    """Why a candidate that the objective would have preferred is not the choice; None where it would not have been.

    Of settings that act alike one was judged for all.
    """
    if best is None or candidate not in ranked[: ranked.index(best)]:
        return None
    sure = {_behaviour(c): f.together for f in finalists for c in ranked if c.engine_config == f.engine_config}
    if _behaviour(candidate) in sure:
        missed, least = 1.0 - sure[_behaviour(candidate)], 1.0 - sure[_behaviour(best)]
        return Rejection(Reason.LESS_SURE, missed, least, "")
    return Rejection(Reason.LESS_MARGIN, nearness(candidate, slo), nearness(best, slo), "")


def _distance(candidate: Candidate) -> tuple[float, ...]:
    """Sort key among candidates that miss something: stable ones first, then by the worst overshoot."""
    overshoot = max((v.measured / v.limit for v in candidate.violations if v.limit > 0), default=float("inf"))
    return (candidate.summary.is_unstable, overshoot, *_order(candidate.engine_config))


def _rejection(
    candidate: Candidate, best: Candidate | None, objective: Objective, slo: Slo, is_on_front: bool
) -> Rejection:
    """The first reason for which a candidate is not the choice."""
    if candidate.violations or best is None:
        return candidate.violations[0]
    own, other = candidate.summary, best.summary
    if objective is Objective.PARETO:
        reason = Reason.ON_FRONT if is_on_front else Reason.BEATEN
        return Rejection(reason, own.ttft_at_percentile_s, other.ttft_at_percentile_s, "s", slo.ttft_percentile)
    rejection = {
        Objective.LOWEST_TTFT: Rejection(
            Reason.LATER_TOKENS, own.ttft_at_percentile_s, other.ttft_at_percentile_s, "s", slo.ttft_percentile
        ),
        Objective.MOST_HEADROOM: Rejection(
            Reason.LARGER_GAPS, own.itl_at_percentile_s, other.itl_at_percentile_s, "s", slo.itl_percentile
        ),
        Objective.HIGHEST_THROUGHPUT: Rejection(
            Reason.LESS_THROUGHPUT, own.output_tokens_per_s, other.output_tokens_per_s, "tokens/s"
        ),
    }[objective]
    return replace(rejection, reason=Reason.NO_BETTER) if rejection.measured == rejection.limit else rejection
