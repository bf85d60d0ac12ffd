"""Fixtures that the tests share."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import settings

from devmath import arch

settings.register_profile("devmath", deadline=None)  # a compilation, or a machine that is busy, takes as long as it takes
settings.load_profile("devmath")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Tests neither read nor leave entries in the user's cache; the workers of one run share a folder."""
    if "DEVMATH_CACHE_DIR" not in os.environ:
        base = tmp_path_factory.getbasetemp()
        base = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
        folder = base / "devmath-cache"
        folder.mkdir(mode=0o700, exist_ok=True)
        os.environ["DEVMATH_CACHE_DIR"] = str(folder)


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)], scope="module")
def xp(request):
    """The array module of each side: the same test body runs with NumPy on the CPU and with CuPy on the GPU."""
    return np if request.param == "cpu" else pytest.importorskip("cupy")


@pytest.fixture
def rng():
    """Fresh random data in each run. pytest shows the seed where a test fails; DEVMATH_TEST_SEED brings the data back."""
    seed = int(os.environ.get("DEVMATH_TEST_SEED", np.random.SeedSequence().entropy % 2**63))
    print(f"DEVMATH_TEST_SEED={seed}")
    return np.random.default_rng(seed)


def pytest_collection_modifyitems(items):
    if arch.device_count():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
