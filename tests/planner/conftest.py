"""What tests of several files need."""

import pytest

from planner import stepper


@pytest.fixture
def outputs_have_content(monkeypatch):
    """A trace tells what its prompts have in common; the recordings know it of their outputs as well."""
    of_prompts = stepper.prefix_ids

    def of_all(trace, index):
        ids, bounds, id_block_tokens, _ = of_prompts(trace, index)
        return ids, bounds, id_block_tokens, (bounds[:, 1] - bounds[:, 0]) * id_block_tokens

    monkeypatch.setattr(stepper, "prefix_ids", of_all)
