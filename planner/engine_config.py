"""vLLM's scheduler settings under vLLM's names, its defaults and its start-up checks."""

from dataclasses import dataclass, fields

from planner.errors import BadFlags
from traces.steps import ServerFacts

VLLM_VERSION = "0.32"
"""The release whose V1 scheduler is simulated."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One way to start `vllm serve`, as far as it decides the schedule. Defaults are vLLM's where it has one.

    Source
    ------
    vLLM 0.32, vllm/config/scheduler.py and vllm/config/cache.py.
    """

    max_num_batched_tokens: int = 2048
    """Token budget of a step."""
    max_num_seqs: int = 256
    """Most requests in one step."""
    long_prefill_token_threshold: int = 0
    """Most prompt tokens one request gets in a step while others are there; 0 = no cap."""
    num_gpu_blocks: int = 40_001
    """KV blocks, the null block included (so one less is usable)."""
    block_size: int = 16
    """Tokens per KV block."""
    max_model_len: int | None = None
    """Longest context, tokens; None = not known, so requests are bounded by the KV pool alone."""
    async_scheduling: bool = True
    """Whether step k+1 is scheduled while step k runs."""
    enable_prefix_caching: bool = True
    """Whether computed blocks are kept for prompts that begin alike; needs a trace with prefix hashes to show."""
    scheduler_reserve_full_isl: bool = True
    """Whether a request is admitted only when all that is known of it would fit now."""
    watermark: float = 0.0
    """Share of the KV blocks kept free at admission while others run, 0–1."""
    enable_chunked_prefill: bool = True
    """Whether a prompt may be split over steps by the budget."""
    long_prefill_token_threshold_adaptive: bool = False
    """Whether the threshold grows to budget ÷ requests."""
    scheduling_policy: str = "fcfs"
    """"fcfs", or "priority" for a trace that has priorities."""
    max_num_scheduled_tokens: int | None = None
    """Token budget where it differs from the input budget; None = the same."""
    max_num_active_seqs: int | None = None
    """Admission cap below `max_num_seqs`; None = the same."""
    speculative_method: str | None = None
    """A key of `DRAFTERS`; None = no speculative decoding."""
    num_speculative_tokens: int = 0
    """Draft tokens per request and step."""
    draft_acceptance_rate: float = 0.6
    """Chance that a draft is accepted when the ones before it were, 0–1; no flag of vLLM's, but a fact of traffic."""

    @property
    def num_kv_tokens(self) -> int:
        """Tokens the KV pool holds."""
        return (self.num_gpu_blocks - 1) * self.block_size


@dataclass(frozen=True, slots=True)
class Drafter:
    """How one method of speculative decoding loads the scheduler."""

    owns_kv: bool
    """Whether drafts want KV slots ahead of time."""
    num_extra_inputs: int
    """Inputs it appends per request, taken from the input budget."""
    drops_last_hit: bool
    """Whether the last block found in the prefix cache is computed again."""
    allows_async: bool
    """Whether vLLM schedules asynchronously with it."""


DRAFTERS = {
    None: Drafter(False, 0, False, True),
    "ngram": Drafter(False, 0, False, False),
    "ngram_gpu": Drafter(False, 0, False, True),
    "eagle": Drafter(True, 0, True, True),
    "eagle3": Drafter(True, 0, True, True),
    "mtp": Drafter(True, 0, True, True),
    "draft_model": Drafter(True, 1, False, True),
}
"""Sequential drafters. Source: vLLM 0.32, config/speculative.py and v1/core/sched/scheduler.py."""


def check_flags(config: EngineConfig) -> None:
    """Refuse what vLLM refuses at start-up, all faults at once.

    Raises
    ------
    BadFlags
        vLLM would not start.

    Source
    ------
    vLLM 0.32, SchedulerConfig.verify_max_model_len and field constraints, check_enough_kv_cache_memory.
    """
    faults = flag_faults(config)
    if faults:
        raise BadFlags("flags", "; ".join(faults))


def flag_faults(config: EngineConfig) -> tuple[str, ...]:
    """Every reason for which vLLM would not start with these flags; empty when it would."""
    faults = [
        f"{name} is {getattr(config, name)}; vLLM allows 1 or more"
        for name in ("max_num_batched_tokens", "max_num_seqs", "block_size")
        if getattr(config, name) < 1
    ]
    for name in ("max_num_scheduled_tokens", "max_num_active_seqs", "max_model_len"):
        value = getattr(config, name)
        if value is not None and value < 1:
            faults.append(f"{name} is {value}; vLLM allows 1 or more, or leave it out")
    if config.max_num_batched_tokens < config.max_num_seqs:
        faults.append(
            f"max_num_batched_tokens ({config.max_num_batched_tokens}) is smaller than max_num_seqs "
            f"({config.max_num_seqs}); every running request needs at least one token of the budget"
        )
    if config.max_num_active_seqs is not None and config.max_num_active_seqs > config.max_num_seqs:
        faults.append(
            f"max_num_active_seqs ({config.max_num_active_seqs}) is above max_num_seqs ({config.max_num_seqs})"
        )
    if config.long_prefill_token_threshold < 0:
        faults.append(f"long_prefill_token_threshold is {config.long_prefill_token_threshold}; 0 turns it off")
    if not 0.0 <= config.watermark < 1.0:
        faults.append(f"watermark is {config.watermark}; vLLM allows 0 up to, not including, 1")
    if config.num_gpu_blocks < 2:
        faults.append(f"num_gpu_blocks is {config.num_gpu_blocks}; one block is the null block, so 2 or more")
    if config.scheduling_policy not in ("fcfs", "priority"):
        faults.append(f"scheduling_policy is {config.scheduling_policy!r}; vLLM knows fcfs and priority")
    faults.extend(_drafter_faults(config))
    if config.max_model_len is not None and config.block_size >= 1:
        faults.extend(_length_faults(config, config.max_model_len))
    return tuple(faults)


def _drafter_faults(config: EngineConfig) -> list[str]:
    """Faults of speculative decoding."""
    if config.speculative_method not in DRAFTERS:
        known = ", ".join(name for name in DRAFTERS if name)
        return [f"speculative_method is {config.speculative_method!r}; simulated: {known}"]
    faults = []
    drafter = DRAFTERS[config.speculative_method]
    if config.speculative_method is not None and config.num_speculative_tokens < 1:
        faults.append(f"num_speculative_tokens is {config.num_speculative_tokens}; a drafter needs 1 or more")
    if not 0.0 <= config.draft_acceptance_rate <= 1.0:
        faults.append(f"draft_acceptance_rate is {config.draft_acceptance_rate}; allowed: 0 to 1")
    if config.async_scheduling and not drafter.allows_async:
        faults.append(f"asynchronous scheduling is not supported with {config.speculative_method} drafts")
    if config.max_num_batched_tokens <= drafter.num_extra_inputs:
        faults.append(
            f"max_num_batched_tokens ({config.max_num_batched_tokens}) leaves no room beside the "
            f"{drafter.num_extra_inputs} inputs that the drafter appends"
        )
    return faults


def _length_faults(config: EngineConfig, max_model_len: int) -> list[str]:
    """Faults that involve the longest context."""
    faults = []
    if config.long_prefill_token_threshold > max_model_len:
        faults.append(
            f"long_prefill_token_threshold ({config.long_prefill_token_threshold}) is above max_model_len "
            f"({max_model_len})"
        )
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < max_model_len:
        faults.append(
            f"max_num_batched_tokens ({config.max_num_batched_tokens}) is smaller than max_model_len "
            f"({max_model_len}) while chunked prefill is off"
        )
    if max_model_len > config.num_kv_tokens:
        faults.append(f"max_model_len ({max_model_len}) does not fit the KV cache of {config.num_kv_tokens} tokens")
    return faults


@dataclass(frozen=True, slots=True)
class GpuTier:
    """vLLM's default flags for one size of GPU memory."""

    label: str
    """As shown to the user."""
    min_gib: float
    """Device memory from which it applies."""
    max_num_batched_tokens: int
    """What `vllm serve` takes when the flag is not given."""
    max_num_seqs: int
    """What `vllm serve` takes when the flag is not given."""


GPU_TIERS = (
    GpuTier("160 GiB or more (B200, MI300X, …)", 160.0, 16_384, 1024),
    GpuTier("70 GiB or more, not A100 (H100, H200, …)", 70.0, 8192, 1024),
    GpuTier("anything else, A100 included", 0.0, 2048, 256),
)
"""Defaults of `vllm serve` by device memory. Source: vLLM 0.32, EngineArgs.get_batch_defaults."""


def default_flags(memory_gib: float) -> tuple[int, int]:
    """VLLM's default budget and seats for so much device memory (an A100 counts as less than 70 GiB)."""
    tier = next(tier for tier in GPU_TIERS if memory_gib >= tier.min_gib)
    return tier.max_num_batched_tokens, tier.max_num_seqs


def flags_from_facts(facts: ServerFacts, usual: tuple[int, int] | None = None) -> EngineConfig:
    """Today's settings as far as a server log states them; the rest is the default.

    Parameters
    ----------
    facts : ServerFacts
    usual : (int, int), optional
        vLLM's default budget and seats on this GPU, for those that the log does not state; vLLM lowers defaulted
        seats to the budget.
    """
    names = [f.name for f in fields(EngineConfig) if hasattr(facts, f.name)]
    stated = {name: value for name in names if (value := getattr(facts, name)) is not None}
    if usual is not None:
        budget = stated.setdefault("max_num_batched_tokens", usual[0])
        stated.setdefault("max_num_seqs", min(usual[1], budget))
    return EngineConfig(**stated)


def changed_flags(today: EngineConfig, other: EngineConfig) -> tuple[str, ...]:
    """Names of the settings in which two configurations differ, in declaration order."""
    return tuple(f.name for f in fields(EngineConfig) if getattr(today, f.name) != getattr(other, f.name))
