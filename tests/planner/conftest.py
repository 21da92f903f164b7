"""What tests of several files need."""

import numpy as np
import pytest

from planner import stepper


@pytest.fixture
def outputs_have_content(monkeypatch):
    """A trace tells what its prompts have in common; the recordings know it of their outputs as well."""
    of_prompts = stepper.shared_prefixes

    def of_all(trace, index):
        prefixes, first_prefix, num_shared_tokens = of_prompts(trace, index)
        if trace.prefix_hashes is not None:
            hashes = trace.prefix_hashes
            most = trace.prompt_tokens[index] + trace.output_tokens[index]
            num_shared_tokens = np.minimum(hashes.shared.num_ids[index] * hashes.block_tokens, most)
        return prefixes, first_prefix, num_shared_tokens

    monkeypatch.setattr(stepper, "shared_prefixes", of_all)
