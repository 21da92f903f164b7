"""Which plan leaves, and under which model's name."""

import re

import streamlit as st

from app.widgets.fields import text
from planner.command import MODEL, MODEL_NAME


def ask_plan(names: tuple[str, ...], label: str, name: str) -> str:
    """Ask for one of several plans."""
    if len(names) == 1:
        return names[0]
    return st.segmented_control(label, names, default=names[0], required=True, key=name)


def ask_model_name() -> str:
    """Ask for the model to write into the command; a name that a shell would read otherwise is not taken."""
    model = text(
        "Model to write into the command",
        "model_name",
        MODEL,
        help="As you give it to `vllm serve`: a name on the hub or a path.",
    )
    if re.fullmatch(MODEL_NAME, model):
        return model
    st.error(f"A model name has letters, digits and . / : @ + - only; {MODEL} is written instead.")
    return MODEL
