"""A comparison that takes seconds: micro trainings of a few steps on the project's own papers."""

import pytest

from tests.training.conftest import own_cache, texts  # noqa: F401  fixtures of the trainings
from tests.training.micro import MODEL

SETTINGS = {
    "steps": 4,
    "batch_size": 4,
    "warmup_steps": 1,
    "validation_sequences": 8,
    "evaluate_every": 2,
    "model": MODEL,
}


@pytest.fixture
def settings(texts):  # noqa: F811
    return {"data": str(texts), **SETTINGS}
