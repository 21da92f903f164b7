"""Files, and what they leave open."""

from dataclasses import replace

import streamlit as st
from streamlit.typing import UploadedFile

from app.frames import ROLES
from traces.answers import ReadAnswers
from traces.errors import Question, Unmapped


def ask_file(label: str, forms: str, name: str) -> UploadedFile | None:
    """Ask for a file; the widget states the limit. What a file is, its content decides, not its name."""
    return st.file_uploader(f"{label}: {forms}", key=name)


def ask_shelf(names: tuple[str, ...], name: str) -> str | None:
    """Ask for a file that lies on the server."""
    return st.selectbox("Or a file on the server", names, index=None, placeholder="choose a file", key=name)


def ask_answers(questions: tuple[Question, ...], answers: ReadAnswers, name: str) -> ReadAnswers:
    """Put every open question of a file, each reading with its consequence."""
    for question in questions:
        options = [choice.value for choice in question.choices]
        labels = {choice.value: choice.label for choice in question.choices}
        given = getattr(answers, question.field)
        value = st.radio(
            question.text,
            options,
            index=options.index(given) if given in options else None,
            format_func=lambda option, labels=labels: f"{option}: {labels[option]}",
            key=f"{name}_{question.field}",
        )
        answers = replace(answers, **{question.field: value})
    return answers


def ask_columns(unmapped: Unmapped, answers: ReadAnswers, name: str) -> ReadAnswers:
    """Ask what the columns of a file are; nothing changes until every part has one."""
    chosen = {}
    for column, field in zip(st.columns(len(unmapped.fields)), unmapped.fields, strict=True):
        role = field.removesuffix("_column")
        given = getattr(answers, field)
        chosen[field] = column.selectbox(
            f"Column with the {ROLES.get(role, role)}",
            unmapped.columns,
            index=unmapped.columns.index(given) if given in unmapped.columns else None,
            placeholder="choose a column",
            key=f"{name}_{field}",
        )
    return replace(answers, **chosen) if all(chosen.values()) else answers
