"""A chosen configuration in the forms people start vLLM with. Nothing is decided here."""

from planner.engine_config import EngineConfig, changed_flags
from planner.search import SEARCHED

MODEL = "MODEL"
"""Stands where the user's model belongs."""
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
    parts = [f"vllm serve {model}"]
    for name, value in flags(config, today).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            parts.append(f"--{option}" if value else f"--no-{option}")
        else:
            parts.append(f"--{option} {value}")
    return " \\\n  ".join(parts) if len(parts) > 3 else " ".join(parts)


def config_yaml(config: EngineConfig, model: str = MODEL) -> str:
    """A file for `vllm serve --config`."""
    lines = [f"model: {model}"]
    for name, value in flags(config).items():
        text = str(value).lower() if isinstance(value, bool) else value
        lines.append(f"{name.replace('_', '-')}: {text}")
    return "\n".join(lines) + "\n"


def flags(config: EngineConfig, today: EngineConfig | None = None) -> dict[str, bool | int | float]:
    """Flags under vLLM's names: those that differ from `today`, or the searched ones and what is not vLLM's default.

    When nothing differs from `today`, the searched ones.
    """
    changed = changed_flags(today or EngineConfig(), config)
    names = dict.fromkeys([*SEARCHED, *changed] if today is None or not changed else changed)
    values = {name: getattr(config, name) for name in names if name not in NOT_EXPORTED}
    return {name: value for name, value in values.items() if value is not None}
