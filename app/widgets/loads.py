"""Other loads: growth and its replicas, and what if load, memory or prompts change."""

import streamlit as st

from app.widgets.fields import choice, number, slide, switch
from planner.routing import Routing
from planner.scenario import Scenario

MULTIPLES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Of load, memory and prompt length."""
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
    return switch("What if load, memory or prompts change? Up to four settings side by side", "is_what_if")


def ask_scenario(can_stretch_prompts: bool) -> Scenario:
    """Ask for another load, another memory and other prompts, as multiples.

    Parameters
    ----------
    can_stretch_prompts : bool
        Whether the trace leaves open how longer prompts would go on.
    """

    def times(label: str, key: str, about: str, disabled: bool = False) -> float:
        words = "× {:g}".format
        return slide(label, f"what_if_{key}", MULTIPLES, 1.0, words, help=about, disabled=disabled)

    load, memory, prompts = st.columns(3, gap="large")
    with load:
        load_asked = times("Load", "load", "2 = the same requests in half the time.")
    with memory:
        memory_asked = times("KV memory", "memory", "Multiple of each setting's own KV cache.")
    with prompts:
        about = "Every prompt becomes so many times as long; outputs stay."
        if not can_stretch_prompts:
            about = "The trace says which prompts begin alike, but not how longer ones would go on."
        prompts_asked = times("Prompt length", "prompts", about, disabled=not can_stretch_prompts)
    return Scenario(load_asked, memory_asked, prompts_asked if can_stretch_prompts else 1.0)
