"""What was found inside a replay, in sentences. Requests are called by their data row in the file, counted from 1."""

from planner.inside.phases import Life, Phase, PhaseKind
from planner.inside.recording import HeldBy, Share
from planner.inside.worst_gaps import Cause, WorstGap
from planner.verdict import seconds
from traces.requests import RequestTrace

MOST_NAMED = 3
"""Requests named in one sentence; the rest is counted."""
WAITS = frozenset({PhaseKind.QUEUED, PhaseKind.PREEMPTED, PhaseKind.PASSED_OVER})
"""Phases that have a reason."""
WAITING_FOR = {
    HeldBy.SEAT: "all seats (max_num_seqs) were taken",
    HeldBy.BUDGET: "the token budget was spent",
    HeldBy.BLOCKS: "too few KV blocks were free",
    HeldBy.WHOLE_PROMPT: "its prompt did not fit the budget in one piece",
    HeldBy.PREEMPTION: "preemptions stopped admission",
    None: "no step said why",
}
"""Why the head of the waiting queue, or a running request, got nothing."""


def gap_sentence(trace: RequestTrace, gap: WorstGap) -> str:
    """What caused a gap, in one sentence without its length and its stream."""
    share = f"{seconds(gap.parts[0][1])} of {seconds(gap.gap_s)}"
    if gap.cause is Cause.PREFILL:
        what = "step" if gap.num_steps == 1 else f"{gap.num_steps:,} steps"
        tokens = sum(culprit.num_tokens for culprit in gap.culprits)
        return f"{what} of {tokens:,} prefill tokens of {named(trace, gap.culprits)} ran beside it ({share})"
    if gap.cause is Cause.PREEMPTED:
        times = f" {gap.num_preemptions} times" if gap.num_preemptions > 1 else ""
        why = f" because {WAITING_FOR[gap.held_by]}" if gap.held_by is not None else ""
        return f"preempted{times} for {seconds(gap.preempted_s)}{why}, recomputed {_num(gap.num_recomputed, 'token')}"
    if gap.cause is Cause.BUDGET:
        return f"waited for a budget spent by {named(trace, gap.culprits)} ({share})"
    if gap.cause is Cause.SKIPPED:
        return f"got no tokens in steps that ended early on a preemption ({share})"
    if gap.cause is Cause.IDLE:
        return f"engine idle: no step ran ({share})"
    beside_s = dict(gap.parts).get(Cause.PREFILL, 0.0)
    tokens = sum(culprit.num_tokens for culprit in gap.culprits)
    if beside_s > 0:
        extra = f"of it, {tokens:,} prefill tokens of {named(trace, gap.culprits)} took {seconds(beside_s)}"
    else:
        extra = "no prefill beside it"
    return f"step that decodes {_num(gap.num_decodes, 'request')}; {extra}"


def life_sentence(trace: RequestTrace, life: Life) -> str:
    """Why a request took as long as it did: where its time went, the largest part first."""
    name = request_name(trace, life.request)
    if not life.phases:
        return f"{name} can never run under these flags."
    parts = [text for _, text in sorted(_parts(trace, life), key=lambda part: -part[0])]
    times = f", preempted {_num(life.num_preemptions, 'time')}" if life.num_preemptions else ""
    end = times if life.is_finished else f"{times}, not finished"
    first = f", first token after {seconds(life.ttft_s)}" if life.ttft_s == life.ttft_s else ", no token"
    return f"{name}: {seconds(life.e2e_s)} in all{first}{end}: {'; '.join(parts)}."


def _parts(trace: RequestTrace, life: Life) -> list[tuple[float, str]]:
    """(seconds, words) for whatever took time."""
    found: list[tuple[float, str]] = []
    waits: dict[tuple[PhaseKind, HeldBy | None, bool], float] = {}
    for phase in life.phases:
        if phase.kind in WAITS:
            key: tuple[PhaseKind, HeldBy | None, bool] = (
                phase.kind,
                phase.held_by,
                phase.is_head or phase.kind is PhaseKind.PASSED_OVER,
            )
            waits[key] = waits.get(key, 0.0) + phase.duration_s
    spenders = f" by {named(trace, life.budget_spenders)}" if life.budget_spenders else ""
    for key, duration_s in waits.items():
        by = spenders if key[1] is HeldBy.BUDGET else ""
        found.append((duration_s, f"{seconds(duration_s)} {wait_in_words(*key)}{by}"))
    work = {
        PhaseKind.PREFILL: "prefill",
        PhaseKind.DECODE: "decode",
        PhaseKind.RECOMPUTE: "recompute",
    }
    for kind, word in work.items():
        phases = life.of_kind(kind)
        if phases:
            found.append((life.seconds_of(kind), _work_in_words(phases, word, life)))
    other = {
        PhaseKind.ARRIVING: "until the step that ran at its arrival ended",
        PhaseKind.IDLE: "with the engine idle",
    }
    for kind, words in other.items():
        duration_s = life.seconds_of(kind)
        if duration_s > 0:
            found.append((duration_s, f"{seconds(duration_s)} {words}"))
    return found


def wait_in_words(kind: PhaseKind, held_by: HeldBy | None, is_head: bool) -> str:
    """A wait and its reason."""
    what: str = {
        PhaseKind.QUEUED: "queued",
        PhaseKind.PREEMPTED: "waiting after a preemption",
        PhaseKind.PASSED_OVER: "running without tokens",
    }[kind]
    if is_head:
        return f"{what} because {WAITING_FOR[held_by]}"
    return f"{what} behind others while {WAITING_FOR[held_by].replace('its prompt', 'the prompt of the first')}"


def _work_in_words(phases: tuple[Phase, ...], word: str, life: Life) -> str:
    """Time, tokens and steps of one kind of work, and what others' prefill took of it."""
    duration_s = sum(phase.end_ns - phase.start_ns for phase in phases) / 1e9
    beside_s = sum(phase.beside_ns for phase in phases) / 1e9
    tokens, steps = sum(phase.num_tokens for phase in phases), sum(phase.num_steps for phase in phases)
    text = f"{seconds(duration_s)} {word} of {_num(tokens, 'token')} in {_num(steps, 'step')}"
    if word == "prefill" and life.num_hit_tokens:
        text += f" ({life.num_hit_tokens:,} more were in the prefix cache)"
    if beside_s > 0:
        text += f", {seconds(beside_s)} of it for prefill of others"
    return text


def _num(num: int, thing: str) -> str:
    """A number of things."""
    return f"{num:,} {thing}" if num == 1 else f"{num:,} {thing}s"


def request_name(trace: RequestTrace, request: int) -> str:
    """What a request is called."""
    return f"request {int(trace.source_row[request]) + 1}"


def named(trace: RequestTrace, shares: tuple[Share, ...]) -> str:
    """Requests with their tokens, as many as fit a sentence."""
    if not shares:
        return "nobody"
    if len(shares) == 1:
        return request_name(trace, shares[0].request)
    listed = [f"{int(trace.source_row[share.request]) + 1} ({share.num_tokens:,})" for share in shares[:MOST_NAMED]]
    rest = shares[MOST_NAMED:]
    if rest:
        listed.append(f"{len(rest):,} more ({sum(share.num_tokens for share in rest):,})")
    return f"requests {', '.join(listed[:-1])} and {listed[-1]}"
