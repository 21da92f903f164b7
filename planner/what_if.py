"""Policies that vLLM does not have, for teaching and for asking what if. Off by default, and no flag anywhere."""

from dataclasses import dataclass

from planner.engine_config import EngineConfig
from planner.errors import BadFlags


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Not what vLLM does. The default changes nothing."""

    evicts_fewest_computed: bool = False
    """Whether the victim of a preemption is the running request with the fewest computed tokens, on ties the one
    admitted last, instead of the one admitted last (or by priority the least urgent)."""
    swap_ns_per_token: int | None = None
    """Nanoseconds to move one token's KV between GPU and CPU memory: a preempted request keeps its computed tokens
    there. What is moved out or in lengthens the step that decides it; CPU memory has no limit and nothing overlaps.
    None = recompute, as vLLM does.

    Source
    ------
    Kwon et al. 2023, PagedAttention, section 4.5 (swapping). Differs: there, swapping works on whole groups of
    sequences and stops admission until all are back.
    """

    @property
    def label(self) -> str:
        """What is to stand beside every number of such a replay; empty when it is vLLM's."""
        parts = []
        if self.evicts_fewest_computed:
            parts.append("the victim of a preemption is whom least has been computed for")
        if self.swap_ns_per_token is not None:
            parts.append(f"KV is swapped to CPU memory at {self.swap_ns_per_token / 1e3:g} µs a token")
        return f"Not what vLLM does: {'; '.join(parts)}." if parts else ""


def check_what_if(what_if: WhatIf, config: EngineConfig) -> None:
    """Refuse what is not modelled.

    Raises
    ------
    BadFlags
        Swapping together with prefix caching or with drafts, or a negative time.
    """
    if what_if.swap_ns_per_token is None:
        return
    faults = []
    if what_if.swap_ns_per_token < 0:
        faults.append(f"swap_ns_per_token is {what_if.swap_ns_per_token}; a time is 0 or more")
    if config.enable_prefix_caching:
        faults.append("swapping is modelled without prefix caching only; turn enable_prefix_caching off")
    if config.speculative_method is not None:
        faults.append("swapping is modelled without speculative decoding only")
    if faults:
        raise BadFlags("what if", "; ".join(faults))
