"""How the server is set up: nothing leaves, and Streamlit's guards stay on."""

import tomllib
from pathlib import Path

from app import compute

ROOT = Path(compute.__file__).parents[1]
GUARDS = ("enableCORS", "enableXsrfProtection", "enableWebsocketCompression", "cookieSecret")


def test_nothing_is_reported_and_the_guards_keep_their_defaults() -> None:
    settings = tomllib.loads((ROOT / ".streamlit/config.toml").read_text(encoding="utf-8"))
    assert settings["browser"]["gatherUsageStats"] is False
    assert settings["client"]["showErrorDetails"] == "none"
    assert not set(GUARDS) & set(settings["server"])


def test_the_container_runs_as_somebody_without_rights_and_keeps_the_guards() -> None:
    lines = (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users[-1] not in ("root", "0")
    assert "EXPOSE 8501" in lines
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    assert not any(guard.lower() in line.lower().replace("_", "") for guard in GUARDS for line in lines)
