"""What vLLM loads: hands each step's statistics to the recorder and returns.

Source
------
vLLM 0.32, v1/metrics/loggers.py: a plug-in must be a subclass of `StatLoggerBase`; its `record` runs in the loop that
sends every token to its client, and an exception there takes the server down.
"""

import atexit
import logging
import os
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from .rows import server_facts
from .writer import FOLDER, Recorder, settings_from

logger = logging.getLogger("vllm.step_recorder")


class StepRecorder(StatLoggerBase):  # type: ignore[misc]  # vLLM has no types where this project is checked
    """One engine's recorder; does nothing unless `STEP_RECORDER_DIR` names a folder."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._config = vllm_config
        self._recorder: Recorder | None = None
        if not os.environ.get(FOLDER):
            logger.warning("Step recorder is installed but records nothing: set %s to a folder.", FOLDER)
            return
        try:
            self._recorder = Recorder(settings_from(os.environ), engine_index)
        except (OSError, ValueError) as fault:
            logger.error("Step recorder records nothing: %s", fault)
            return
        if not getattr(vllm_config.observability_config, "enable_logging_iteration_details", False):
            logger.warning("Step recorder records requests only: steps need --enable-logging-iteration-details.")
        atexit.register(self._recorder.close)

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Take one step's statistics; never waits, never raises."""
        if self._recorder is not None:
            self._recorder.put(scheduler_stats, iteration_stats)

    def log_engine_initialized(self) -> None:
        """Start to write: only now is the size of the KV cache known."""
        if self._recorder is not None:
            self._recorder.start(server_facts(self._config))
            logger.info("Step recorder writes to %s", self._recorder.settings.folder)
