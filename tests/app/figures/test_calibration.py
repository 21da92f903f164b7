from dataclasses import replace

import numpy as np

from app.figures import calibration
from planner.step_time import StepTimeFit
from traces.steps import StepLog


def test_predicted_stands_against_measured_in_milliseconds(fit: StepTimeFit) -> None:
    canvas = calibration.predicted_against_measured(fit)
    used = next(trace for trace in canvas.data if trace.name.startswith("steps used"))
    np.testing.assert_allclose(used.x, 1e3 * fit.measured_s[fit.kept])
    np.testing.assert_allclose(used.y, 1e3 * fit.predicted_s[fit.kept])
    assert canvas.layout.xaxis.title.text == "Measured step time [ms]"
    assert canvas.layout.yaxis.title.text == "Predicted step time [ms]"


def test_steps_left_out_are_shown_as_such(fit: StepTimeFit) -> None:
    kept = fit.kept.copy()
    kept[:7] = False
    canvas = calibration.predicted_against_measured(replace(fit, kept=kept))
    left_out = next(trace for trace in canvas.data if trace.name == "steps left out (7)")
    np.testing.assert_allclose(left_out.y, 1e3 * fit.predicted_s[:7])
    assert left_out.showlegend


def test_step_time_by_prefill_has_measured_and_predicted(log: StepLog, fit: StepTimeFit) -> None:
    canvas = calibration.step_time_by_prefill(log, fit)
    measured, predicted = canvas.data
    np.testing.assert_array_equal(measured.x, log.prefill_tokens[fit.kept])
    np.testing.assert_allclose(measured.y, 1e3 * log.step_s[fit.kept])
    np.testing.assert_allclose(predicted.y, 1e3 * fit.predicted_s[fit.kept])
    assert canvas.layout.xaxis.title.text == "Prefill tokens in the step [tokens]"
    assert canvas.layout.yaxis.title.text == "Step time [ms]"
