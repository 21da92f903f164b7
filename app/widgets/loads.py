"""Other loads: growth and its replicas, and what if load, memory or prompts change."""

import streamlit as st

from app.figures.labels import percent
from app.widgets.fields import choice, number, slide, switch
from planner.routing import Routing
from planner.scenario import Scenario

MULTIPLES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Of load, memory and prompt length."""
SHARES = tuple(tenth / 10.0 for tenth in range(10))
"""Of prompt tokens."""
SEEN_RULE = (
    "Fewer prefix-cache hits, by this rule: every prompt keeps the same part of what the trace says it has in common "
    "with earlier ones, from its beginning on; what comes after is text of its own."
)
MADE_UP_RULE = (
    "Prefix-cache hits that are made up, as the trace does not say which prompts begin alike: every prompt begins with "
    "the same text, its first part of the share above, to the nearest 64 tokens."
)
ROUTINGS = {
    Routing.ROUND_ROBIN: "round robin",
    Routing.LEAST_LOADED: "least loaded (fewest outstanding requests; an estimate)",
    Routing.PREFIX_AFFINITY: "prefix affinity (needs a trace with prefix hashes)",
}


def ask_growth() -> float:
    """Ask which growth replicas are sized for."""
    about = "1 is the trace as it is; 2 is the same requests twice as fast."
    return number("Replicas for this multiple of the load", "growth", 1.0, 0.01, 1000.0, 0.5, help=about)


def ask_routing() -> Routing:
    """Ask how requests are dealt to replicas."""
    about = "Which replica gets a request, where one is not enough."
    return choice("Routing", "routing", list(ROUTINGS), Routing.ROUND_ROBIN, ROUTINGS.__getitem__, help=about)


def ask_whether_what_if() -> bool:
    """Ask whether settings are to be compared under a changed load."""
    return switch("What if load, memory, prompts or cache hits change? Up to four settings side by side", "is_what_if")


def ask_scenario(own_share: float | None) -> Scenario:
    """Ask for another load, another memory, other prompts, as multiples, and for another share of prefix-cache hits.

    Parameters
    ----------
    own_share : float, optional
        Share of the prompt tokens that the trace says were seen before; None = it does not say.
    """

    def times(label: str, key: str, about: str, disabled: bool = False) -> float:
        words = "× {:g}".format
        return slide(label, f"what_if_{key}", MULTIPLES, 1.0, words, help=about, disabled=disabled)

    load, memory, prompts, hits = st.columns(4, gap="medium")
    with load:
        load_asked = times("Load", "load", "2 = the same requests in half the time.")
    with memory:
        memory_asked = times("KV memory", "memory", "Multiple of each setting's own KV cache.")
    with prompts:
        about = "Every prompt becomes so many times as long; outputs stay."
        if own_share is not None:
            about = "The trace says which prompts begin alike, but not how longer ones would go on."
        prompts_asked = times("Prompt length", "prompts", about, disabled=own_share is not None)
    with hits:
        own = own_share or 0.0
        shares = [share for share in SHARES if share < own] if own_share is not None else list(SHARES)
        options = [*shares, own] if own_share is not None else [own, *shares[1:]]
        seen = slide(
            "Prompt tokens seen before",
            f"what_if_hits_{own:.3g}",
            options,
            own,
            lambda share: f"{percent(share)}{' (the trace)' if share == own else ''}",
            help="Share of the prompt tokens that begin like an earlier prompt: what a prefix cache without end saves. "
            "What each setting finds in its own cache stands in the table.",
        )
    if seen != own:
        st.caption(SEEN_RULE if own_share is not None else MADE_UP_RULE)
    return Scenario(
        load=load_asked,
        kv_memory=memory_asked,
        prompt_length=1.0 if own_share is not None else prompts_asked,
        seen_share=None if seen == own else seen,
    )
