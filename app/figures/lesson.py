"""The toy replay of the method page, step by step."""

import plotly.graph_objects as go

from app.figures import theme
from app.figures.labels import SCHEDULED_TOKENS, TOY_STEP
from planner.inside.lesson import TOY, Turn

FADED = 0.35
"""How strong the steps are drawn that are not looked at."""


def letter(request: int) -> str:
    """What a request of the toy trace is called."""
    return "ABCDE"[request]


def who_got_tokens(turns: tuple[Turn, ...], budget: int, current: int) -> go.Figure:
    """Who gets the tokens of each step? One column a step, one piece a request; `current` stands out."""
    about = f"simulated; letters are requests; step {current + 1} is chosen below"
    canvas = theme.figure("Who gets the tokens of each step?", TOY_STEP.title, SCHEDULED_TOKENS.title, about)
    for name, look, is_prefill in (("decode", theme.OUTPUT, False), ("prefill", theme.PROMPT, True)):
        for request in range(len(TOY)):
            pieces = [
                (number, share.num_tokens)
                for number, turn in enumerate(turns, start=1)
                for share in (turn.row.prefilled if is_prefill else turn.row.decoded)
                if share.request == request
            ]
            canvas.add_bar(
                x=[number for number, _ in pieces],
                y=[tokens for _, tokens in pieces],
                name=name,
                legendgroup=name,
                showlegend=request == 0,
                text=[letter(request)] * len(pieces),
                textposition="inside",
                textangle=0,
                textfont_size=10,
                constraintext="none",
                insidetextanchor="middle",
                marker={
                    "color": look.colour,
                    "opacity": [1.0 if number == current + 1 else FADED for number, _ in pieces],
                    "line": {"color": "white", "width": 1},
                },
                hovertemplate=f"{letter(request)}: %{{y}} tokens of {name}<extra></extra>",
            )
    limit = {"color": theme.TARGET.colour, "dash": theme.TARGET.dash, "width": 1.5}
    font = {"color": theme.TARGET.colour}
    canvas.add_hline(y=budget, line=limit, annotation={"text": f"budget {budget} tokens", "font": font})
    canvas.update_layout(barmode="stack", bargap=0.1, uirevision="lesson")
    canvas.update_xaxes(dtick=1, range=[0.4, len(turns) + 0.6])
    canvas.update_yaxes(range=[0, 1.15 * budget])
    return canvas
