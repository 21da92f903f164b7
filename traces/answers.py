"""What the user said about a file that the file itself does not say."""

from dataclasses import dataclass

TIME_UNITS = ("s", "ms", "us", "ns")
"""Units that a number of a time column can have."""


@dataclass(frozen=True, slots=True)
class ReadAnswers:
    """Answers to `errors.Question`; None = not answered, the file must settle it."""

    arrival_unit: str | None = None
    """Unit of a numeric arrival column, one of `TIME_UNITS`."""
    arrival_column: str | None = None
    """Name of the arrival column, as the file spells it."""
    prompt_column: str | None = None
    """Name of the column with prompt tokens."""
    output_column: str | None = None
    """Name of the column with output tokens."""
    same_day: str | None = None
    """Times of day: "yes" = all on one day, "no" = every step back in file order is a midnight."""
    clock_change: str | None = None
    """A step back of about an hour: "yes" = the clocks went back there, "no" = the rows are unsorted."""
    step_time_unit: str | None = None
    """Unit of a step log's time column, one of `TIME_UNITS`."""
    step_time_column: str | None = None
    """Name of a step log's time column."""
    prefill_tokens_column: str | None = None
    """Name of a step log's column with prompt tokens computed in the step."""
    decode_reqs_column: str | None = None
    """Name of a step log's column with decoding requests."""
    benchmark: str | None = None
    """Which of several benchmarks in one file, counted from 0, or "all" of them on the file's clock."""
    drop_bad_rows: bool = False
    """Leave bad rows out and list them in the receipt, instead of refusing the file."""

    def __post_init__(self) -> None:
        for field, allowed in (
            ("arrival_unit", TIME_UNITS),
            ("step_time_unit", TIME_UNITS),
            ("same_day", ("yes", "no")),
            ("clock_change", ("yes", "no")),
        ):
            value = getattr(self, field)
            if value is not None and value not in allowed:
                raise ValueError(f"{field} is {value!r}; allowed: {', '.join(allowed)}")


NO_ANSWERS = ReadAnswers()
"""Nothing was asked yet."""
