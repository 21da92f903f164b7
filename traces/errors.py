"""What can be wrong with something a user gave us.

InputError                 anything the user can put right
├── UnreadableFile         not a file we can open, or not in a form we know
├── BadData                the file opens, but columns or rows are wrong; lists every fault
└── NeedsAnswer            the file alone does not settle its meaning; lists the questions

`planner.errors` adds the faults of settings and of calibration under the same root.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, with everything needed to find and mend it."""

    column: str | None
    """Name of the column as the file spells it; None when the fault is not in one column."""
    found: str
    """What stands there."""
    allowed: str
    """What may stand there."""
    action: str
    """What the user can do about it."""
    rows: tuple[int, ...] = ()
    """First bad data rows, counted from 0."""
    num_rows: int = 0
    """How many rows are bad in all."""

    def __str__(self) -> str:
        where = [] if self.column is None else [f"column {self.column!r}"]
        if self.rows:
            where.append(f"row {self.rows[0] + 1} (index {self.rows[0]})")
        if self.num_rows > 1:
            where.append(f"{self.num_rows:,} rows in all")
        place = ", ".join(where)
        return f"{place + ': ' if place else ''}{self.found}; allowed: {self.allowed}. {self.action}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One possible answer to a `Question`, with what the file would then say."""

    value: str
    """What to put into `ReadAnswers`."""
    label: str
    """The reading in words, with its consequence (for instance the span it gives)."""


@dataclass(frozen=True, slots=True)
class Question:
    """Something only the user knows."""

    field: str
    """The `ReadAnswers` field that takes the answer; its command-line option is this with dashes."""
    column: str | None
    """The column in question."""
    text: str
    """The question, in a sentence."""
    choices: tuple[Choice, ...]
    """Every reading that is possible."""

    def __str__(self) -> str:
        option = "--" + self.field.replace("_", "-")
        choices = "; ".join(f"{option} {choice.value}: {choice.label}" for choice in self.choices)
        return f"{self.text} Answer with {choices}."


@dataclass(frozen=True, slots=True)
class Unmapped:
    """Columns of which the user has to say what they are."""

    fields: tuple[str, ...]
    """Fields of `ReadAnswers` that take a column's name."""
    columns: tuple[str, ...]
    """Every column of the file."""


class InputError(Exception):
    """Something the user gave cannot be used as it is."""

    unmapped: Unmapped | None = None
    """What can be named by hand, where parts of the file are not recognised by their names."""

    def __init__(self, file_name: str, message: str) -> None:
        super().__init__(f"{file_name}: {message}")
        self.file_name = file_name
        """The file as the user named it."""
        self.message = message
        """What was found, what is allowed, what to do."""


class UnreadableFile(InputError):
    """The bytes are not a file we can open, or hold nothing that we know."""


class BadData(InputError):
    """Columns or rows are wrong; every fault is listed, not the first only."""

    def __init__(self, file_name: str, problems: tuple[Problem, ...]) -> None:
        super().__init__(file_name, "\n".join(str(problem) for problem in problems))
        self.problems = problems
        """Every fault found."""


class NeedsAnswer(InputError):
    """The file alone does not settle what it means; nothing is guessed."""

    def __init__(self, file_name: str, questions: tuple[Question, ...]) -> None:
        super().__init__(file_name, "\n".join(str(question) for question in questions))
        self.questions = questions
        """Every open question."""
