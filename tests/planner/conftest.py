"""What tests of several files need."""

import numpy as np
import pytest

from planner import stepper


@pytest.fixture
def outputs_have_content(monkeypatch):
    """A trace tells what its prompts have in common; the recordings know it of their outputs as well."""
    of_prompts = stepper.beginnings_of

    def of_all(trace, index):
        beginnings = of_prompts(trace, index)
        if trace.prefix_hashes is None:
            return beginnings
        hashes = trace.prefix_hashes
        most = trace.prompt_tokens[index] + trace.output_tokens[index]
        return beginnings._replace(num_tokens=np.minimum(hashes.shared.num_ids[index] * hashes.block_tokens, most))

    monkeypatch.setattr(stepper, "beginnings_of", of_all)
