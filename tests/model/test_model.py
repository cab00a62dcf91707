"""The whole store against a plain model of it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.model.checks import CI_SEQUENCES
from tests.model.machine import run_sequences


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sequences_of_all_operations_do_what_the_model_says(engine: sa.Engine) -> None:
    """200 sequences, the same ones each time; `python -m tests.model` runs more, and others."""
    run_sequences(engine, CI_SEQUENCES)
