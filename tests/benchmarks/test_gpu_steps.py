"""The script for a GPU without a log: its grid determines every term, and it runs where PyTorch is."""

import csv
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu_steps import CHUNKS, SHAPES, Model, Point, _row, grid, main
from planner.calibrate import fit_step_time
from planner.kernel import step_ns
from planner.step_time import StepTime
from traces.read import read_steps

LLAMA_ON_80_GIB = 400_000
"""KV tokens beside the weights of the 8B model, rounded down."""
PLAIN = StepTime(base_ns=6_000_000, per_seq_ns=20_000, per_prefill_token_ns=25_000)
TRUTHS = {
    "plain": PLAIN,
    "two KV slopes": PLAIN._replace(per_kv_token_ns=35.0, per_kv_token_mixed_ns=70.0),
    "attention": PLAIN._replace(per_kv_token_ns=35.0, per_kv_token_mixed_ns=35.0, per_prefill_attention_ns=0.9),
    "offset": PLAIN._replace(per_kv_token_ns=35.0, per_kv_token_mixed_ns=35.0, any_prefill_ns=3_000_000.0),
    "context of prefill": PLAIN._replace(
        per_kv_token_ns=35.0, per_kv_token_mixed_ns=35.0, per_prefill_attention_ns=0.9, per_kv_prefill_token_ns=900.0
    ),
    "kink": PLAIN._replace(per_prefill_token_ns=5_000, per_token_beyond_256_ns=20_000.0),
    "everything": PLAIN._replace(
        per_prefill_token_ns=5_000,
        per_kv_token_ns=35.0,
        per_kv_token_mixed_ns=70.0,
        any_prefill_ns=3_000_000.0,
        per_prefill_attention_ns=0.9,
        per_kv_prefill_token_ns=900.0,
        per_token_beyond_256_ns=20_000.0,
    ),
}


def exact_ns(truth: StepTime, points: list[Point]) -> np.ndarray:
    """Time of each point on a GPU that takes as long as `truth` says."""
    seqs, context, chunk, chunk_context = np.array(points).T
    attention = chunk * (chunk_context + chunk / 2)
    return step_ns.py_func(
        truth, seqs + (chunk > 0), chunk, 1.0 * seqs * context, attention, kv_prefill_tokens=1.0 * chunk_context
    )


def write_table(points: list[Point], truth: StepTime, noise: float, path: Path) -> Path:
    """What the script would write there."""
    rng = np.random.default_rng(3)
    rows = [
        _row(point, [exact / 1e9 * rng.normal(1, noise) for _ in range(3)])
        for point, exact in zip(points, exact_ns(truth, points), strict=True)
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def errors(found: StepTime, truth: StepTime) -> dict[str, float]:
    """Relative error of each coefficient; of one that is not there, its largest share in any step's time."""
    points = grid(LLAMA_ON_80_GIB)
    error = {}
    for name, value in truth._asdict().items():
        own = getattr(found, name)
        without = exact_ns(found._replace(**{name: 0}), points)
        error[name] = own / value - 1 if value else float(np.max(1 - without / exact_ns(found, points)))
    return error


@pytest.mark.parametrize("name", TRUTHS)
def test_the_grid_determines_every_term(name: str, tmp_path: Path) -> None:
    truth = TRUTHS[name]
    path = write_table(grid(LLAMA_ON_80_GIB), truth, 0.0, tmp_path / "steps.csv")
    fit = fit_step_time(read_steps(path, path.name))
    found = errors(fit.step_time, truth)
    assert all(abs(error) < 0.002 for error in found.values()), found


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_noise_and_a_dropped_rest_leave_the_terms_known(share: float, tmp_path: Path) -> None:
    truth = TRUTHS["attention"]
    points = grid(LLAMA_ON_80_GIB)
    path = write_table(points[: int(share * len(points))], truth, 0.01, tmp_path / "steps.csv")
    fit = fit_step_time(read_steps(path, path.name))
    found = errors(fit.step_time, truth)
    for term in ("base_ns", "per_prefill_token_ns", "per_kv_token_ns", "per_prefill_attention_ns"):
        assert abs(found[term]) < 0.05, found
    assert fit.held_out_p95 < 0.03


def test_the_grid_is_the_same_every_time_and_fits_the_memory() -> None:
    points = grid(20_000, max_chunk=1024)
    assert points == grid(20_000, max_chunk=1024)
    assert points != grid(20_000, max_chunk=1024, seed=1)
    assert max(point.kv_tokens for point in points) <= 20_000
    assert max(point.chunk for point in points) == 1024
    assert len(set(grid(LLAMA_ON_80_GIB))) == len(grid(LLAMA_ON_80_GIB)) < 400


def test_without_torch_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["-o", str(tmp_path / "steps.csv")]) == 2
    assert "PyTorch is not installed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_a_gpu_it_does_not_start_the_large_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_available=lambda: False)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert main(["-o", str(tmp_path / "steps.csv")]) == 2
    assert "--shape tiny" in capsys.readouterr().err


def test_a_tiny_model_runs_and_its_table_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: it is no dependency of the project")
    output = tmp_path / "steps.csv"
    options = ["--shape", "tiny", "--device", "cpu", "--max-kv-tokens", "1100", "--max-chunk", "64", "-o", str(output)]
    assert main([*options, "--budget-s", "30"]) == 0
    steps = read_steps(output, output.name)
    assert steps.receipt is not None
    assert not steps.receipt.dropped
    assert steps.step_s.min() > 0
    assert steps.kv_decode_tokens is not None
    assert steps.kv_prefill_tokens is not None
    assert steps.prefill_attention is not None
    assert set(steps.prefill_tokens) <= {0, *CHUNKS}
    with output.open() as file:
        row = next(csv.DictReader(file))
    assert (row["model"], row["device"], row["dtype"], row["cuda_graph"]) == ("tiny", "cpu", "bfloat16", "False")
    assert main([*options, "--budget-s", "0.01"]) == 0
    assert "dropped" in capsys.readouterr().err


def test_a_chunk_sees_its_context_and_what_is_before_it() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: it is no dependency of the project")
    model = Model(SHAPES["tiny"], "cpu", seed=0)
    chunk, context, group = 5, 7, 2
    query = torch.randn(1, chunk, 4, 16)
    keys, values = torch.randn(2, 1, context + chunk, 2, 16)
    attended = model._sdpa(query, keys, values, is_chunk=True)
    for token in range(chunk):
        for head in range(4):
            seen = slice(0, context + token + 1)
            scores = keys[0, seen, head // group] @ query[0, token, head] / 16**0.5
            expected = scores.softmax(0) @ values[0, seen, head // group]
            torch.testing.assert_close(attended[0, token, head], expected)
