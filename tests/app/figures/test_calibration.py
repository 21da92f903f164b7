from dataclasses import replace

import numpy as np

from app.figures import calibration
from app.figures.calibration import Against
from planner.step_time import StepTimeFit
from traces.steps import StepLog


def test_predicted_stands_against_measured_in_milliseconds(fit: StepTimeFit) -> None:
    canvas = calibration.predicted_against_measured(fit)
    used = next(trace for trace in canvas.data if trace.name.startswith("steps used"))
    np.testing.assert_allclose(used.x, 1e3 * fit.log.step_s[fit.kept])
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
    canvas = calibration.step_time_by_prefill(fit)
    measured, predicted = canvas.data
    np.testing.assert_array_equal(measured.x, log.prefill_tokens[fit.kept])
    np.testing.assert_allclose(measured.y, 1e3 * log.step_s[fit.kept])
    np.testing.assert_allclose(predicted.y, 1e3 * fit.predicted_s[fit.kept])
    assert canvas.layout.xaxis.title.text == "Prefill tokens in the step [tokens]"
    assert canvas.layout.yaxis.title.text == "Step time [ms]"


def test_residuals_are_predicted_over_measured(fit: StepTimeFit) -> None:
    canvas = calibration.residuals(fit, Against.BATCH)
    decode, prefill, middle = canvas.data
    which = fit.kept & (fit.log.prefill_tokens > 0)
    np.testing.assert_array_equal(prefill.x, (fit.log.num_prefill_reqs + fit.log.num_decode_reqs)[which])
    np.testing.assert_allclose(prefill.y, 100 * (fit.predicted_s[which] / fit.log.step_s[which] - 1))
    assert len(decode.x) == (fit.kept & ~which).sum()
    assert np.all(np.diff(middle.x) > 0)
    assert canvas.layout.yaxis.title.text == "Predicted ÷ measured − 1 [%]"


def test_the_middle_of_equal_values_is_one_point(fit: StepTimeFit) -> None:
    middle = calibration.residuals(fit, Against.PREFILL).data[-1]
    assert np.sum(np.asarray(middle.x) == 0) == 1


def test_unknown_context_is_said(fit: StepTimeFit) -> None:
    silent = replace(fit, log=replace(fit.log, kv_decode_tokens=None))
    assert "does not tell" in calibration.residuals(silent, Against.CONTEXT).layout.annotations[0].text


def test_steps_are_counted_where_the_log_has_no_stamps(fit: StepTimeFit) -> None:
    canvas = calibration.residuals(replace(fit, log=replace(fit.log, stamp_s=None)), Against.TIME)
    assert canvas.layout.xaxis.title.text == "Step of the log [number]"


def test_d_goes_through_what_was_measured(fit: StepTimeFit) -> None:
    canvas = calibration.decode_curve(fit)
    measured, *lines = canvas.data
    decodes = fit.kept & (fit.log.prefill_tokens == 0)
    size = int(measured.x[0])
    assert measured.y[0] == 1e3 * np.median(fit.log.step_s[decodes & (fit.log.num_decode_reqs == size)])
    inside = [line for line in lines if line.showlegend]
    assert max(line.x[-1] for line in inside) == fit.covered.max_num_seqs
    assert np.all(np.diff(inside[0].y) >= 0)
    nearest = int(np.argmin(np.abs(np.asarray(inside[len(inside) // 2].x) - fit.typical_num_seqs)))
    assert abs(inside[len(inside) // 2].y[nearest] / (1e3 * fit.typical_decode_s) - 1) < 0.1
