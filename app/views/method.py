"""How the answer comes about: scheduler, step times, words, limits; with a toy replay to step through."""

import streamlit as st

from app import compute, frames, panels
from app.figures import lesson
from app.glossary import FLAGS, GLOSSARY, QUESTIONS
from app.widgets.inside import ask_toy, ask_toy_step
from planner.verdict import not_simulated

st.subheader("How does the scheduler decide?")
st.markdown(
    "Every step, vLLM closes **gaps**. A request's gap is its known tokens (prompt and output so far) less those "
    "computed. First the running requests, in order of admission, then the waiting ones get what closes their gap, "
    "until the **budget**, the **seats** or the **KV blocks** are used up. A decode is a gap of 1, a prompt a large "
    "gap. Where a running request finds no KV block, the one admitted last loses its own: a **preemption**."
)

# Choose
config = ask_toy()
turns = compute.lesson_of(config)
number = ask_toy_step(len(turns), f"toy_step_{hash(config)}")
turn = turns[number - 1]

# Show
figure, words = st.columns([3, 2], gap="large")
with figure:
    panels.show_figure(lesson.who_got_tokens(turns, config.max_num_batched_tokens, number - 1), "lesson")
with words:
    st.markdown(f"**Step {number}**: {frames.toy_sentence(turn)}")
    st.table(frames.toy_gaps(turn), border="horizontal", hide_index=True)
    st.caption("Five made-up requests with a hundredth of real sizes, through the same code that replays your trace.")

st.subheader("How long does a step take?")
st.markdown(
    "Step time = **base + per request × requests + p × prefill tokens**, and further terms where your log shows them, "
    "above all the context that decodes read. A step that only decodes takes **d**. Every stream in a step waits for "
    "all of it, so a prompt beside the streams lengthens their gaps: a budget near **(target − d) ÷ p** keeps the "
    "longest step at the target. That is where the search begins; replays of your trace decide."
)
st.table(frames.flags_explained(FLAGS), border="horizontal", hide_index=True)

st.subheader("Where is what answered?")
st.table(frames.two_columns(QUESTIONS, ("question", "answer")), border="horizontal", hide_index=True)

meanings, limits = st.columns([3, 2], gap="large")
with meanings:
    st.subheader("What do the words mean?")
    st.table(frames.two_columns(GLOSSARY, ("word", "meaning")), border="horizontal", hide_index=True)
with limits:
    st.subheader("What is not simulated?")
    st.markdown("\n".join(f"- {thing}" for thing in not_simulated()))
    st.markdown(
        "Also beyond it: the way of a token from the engine to the client, other work on the GPU, and traffic that is "
        "not in the trace. Steps outside the range that the log covers are extrapolated; the Plan page says how many."
    )
