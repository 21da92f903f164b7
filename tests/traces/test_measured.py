"""What load generators write, read into one form."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shared import files

from traces.errors import UnreadableFile
from traces.measured import read_measured


def test_receipt_times(tmp_path):
    path = tmp_path / "requests.parquet"
    pq.write_table(pa.table({"arrival_s": [0.0, 1.0, 2.0], "token_s": [[0.5, 0.6, 0.9], [1.25], []]}), path)

    measured = read_measured(path)

    assert measured.arrival_s.tolist() == [0.0, 1.0]
    assert measured.num_outputs.tolist() == [3, 1]
    assert measured.last_token_s.tolist() == [0.9, 1.25]
    np.testing.assert_allclose(measured.gap_s, [0.1, 0.3])
    np.testing.assert_allclose(measured.worst_gap_s, [0.3, np.nan])


def test_bench_serve(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"start_times": [10.0, 11.0], "ttfts": [0.5, 0.0], "itls": [[0.1, 0.2], []]}))

    measured = read_measured(path)

    assert measured.first_token_s.tolist() == [10.5]
    np.testing.assert_allclose(measured.gap_s, [0.1, 0.2])


@pytest.mark.parametrize("text", ["{}", "no json", '{"start_times": [], "ttfts": [], "itls": []}'])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(UnreadableFile, match=r"result\.json"):
        read_measured(path)


@pytest.mark.data
@pytest.mark.parametrize("path", files("data/formats/vllm_0.32_bench_serve_save_detailed.json"))
def test_a_real_benchmark_says_what_it_says_itself(path):
    own = json.loads(path.read_bytes())
    measured = read_measured(path)
    assert 1e3 * np.mean(measured.first_token_s - measured.arrival_s) == pytest.approx(own["mean_ttft_ms"])
    assert 1e3 * np.mean(measured.gap_s) == pytest.approx(own["mean_itl_ms"], rel=0.01)
