"""Parts that do not fit together are named with both versions and the command that mends it."""

import pytest

from devmath.codegen import versions
from devmath.errors import VersionError


def test_tools_newer_than_the_driver():
    for driver, tool in [((13, 0), (13, 5)), ((13, 5), (13, 0)), ((13, 0), (12, 9)), (None, (13, 0))]:
        versions.check_driver(driver, tool)
    with pytest.raises(VersionError) as e:
        versions.check_driver((12, 8), (13, 0))
    text = str(e.value)
    assert "12.8" in text and "13.0" in text and "pip install 'devmath[cu12]'" in text and "\n" not in text


def test_ltoir_newer_than_the_linker():
    for isa, linker in [((13, 0), (13, 0)), ((13, 0), (13, 5)), ((12, 9), (12, 9))]:
        versions.check_ltoir("x", isa, linker)
    for isa, linker in [((13, 5), (13, 0)), ((13, 0), (12, 9)), ((12, 9), (13, 0))]:
        with pytest.raises(VersionError) as e:
            versions.check_ltoir("the code of FFT(8)", isa, linker)
        text = str(e.value)
        assert "the code of FFT(8)" in text and "pip install" in text and "\n" not in text
        assert all(f"{v[0]}.{v[1]}" in text for v in (isa, linker))


@pytest.mark.parametrize("name", versions.SUPPORTED)
def test_the_lowest_and_the_newest_supported_version_pass(name):
    low, high = versions.SUPPORTED[name]
    versions.require(name, low)
    versions.require(name, (*high[:-1], high[-1] - 1, 99))
    for bad in ((*low[:-1], low[-1] - 1, 9), high, (*high, 1)):
        with pytest.raises(VersionError) as e:
            versions.require(name, bad)
        text = str(e.value)
        assert (
            text.startswith(f"{name} {'.'.join(map(str, bad))} is not supported: devmath works with {name} >= ") and "pip install" in text
        )
        assert isinstance(e.value, RuntimeError)


def test_an_excluded_numba_cuda_is_refused_by_its_version(monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda name: "0.31.0rc1")
    versions.check_numba_cuda.cache_clear()
    try:
        with pytest.raises(VersionError, match="^numba-cuda 0.31.0.1 is not supported"):
            versions.check_numba_cuda()
    finally:
        monkeypatch.undo()
        versions.check_numba_cuda.cache_clear()
    versions.check_numba_cuda()
    with pytest.raises(VersionError, match="^libmathdx 0.5.0 is not supported"):
        versions.check_libmathdx((0, 5, 0))
