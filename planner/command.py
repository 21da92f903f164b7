"""A configuration as a `vllm serve` command line. Nothing is decided here."""

from planner.engine_config import EngineConfig, changed_flags
from planner.search import SEARCHED

MODEL = "MODEL"
"""Stands where the user's model belongs."""
MODEL_NAME = r"[\w./:@+-]+"
"""What a model's name may be made of, so that no shell and no YAML reads it otherwise."""
NOT_EXPORTED = (
    "num_gpu_blocks",
    "speculative_method",
    "num_speculative_tokens",
    "draft_acceptance_rate",
)
"""vLLM finds the first out by itself; the others belong into the user's own --speculative-config."""


def serve_command(config: EngineConfig, today: EngineConfig | None = None, model: str = MODEL) -> str:
    """The `vllm serve` command line.

    Parameters
    ----------
    config : EngineConfig
    today : EngineConfig, optional
        When given, only flags that differ from it are written.
    model : str
    """
    return joined(f"vllm serve {model}", [" ".join(words) for words in options(flags(config, today))])


def joined(command: str, parts: list[str]) -> str:
    """A command line; a long one goes over several lines."""
    parts = [command, *parts]
    return " \\\n  ".join(parts) if len(parts) > 3 else " ".join(parts)


def options(values: dict[str, bool | int | float | str]) -> list[tuple[str, ...]]:
    """Flags as vLLM's parser takes them, the words of each: one for a switch, option and value for anything else."""
    found: list[tuple[str, ...]] = []
    for name, value in values.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            found.append((f"--{option}" if value else f"--no-{option}",))
        else:
            found.append((f"--{option}", f"{value}"))
    return found


def flags(config: EngineConfig, today: EngineConfig | None = None) -> dict[str, bool | int | float | str]:
    """Flags under vLLM's names: those that differ from `today`, or the searched ones and what is not vLLM's default.

    When nothing differs from `today`, the searched ones.
    """
    changed = changed_flags(today or EngineConfig(), config)
    names = dict.fromkeys([*SEARCHED, *changed] if today is None or not changed else changed)
    values = {name: getattr(config, name) for name in names if name not in NOT_EXPORTED}
    return {name: value for name, value in values.items() if value is not None}
