"""The examples do what they say, and the laws of Monte Carlo that users met elsewhere hold in kernels."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import devmath as dm
from devmath import demo

pytest.importorskip("matplotlib")
pytest.importorskip("QuantLib")
pytest.importorskip("skimage")

F = np.float32
philox = dm.random.Philox()


def _example(name):
    file = Path(__file__).parent.parent / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pricing = _example("option_pricing")
convolution = _example("fused_convolution")


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def side(request):
    """What ``--device`` takes."""
    if request.param == "gpu":
        pytest.importorskip("cupy")
    return request.param


def _host(array):
    return array.get() if hasattr(array, "get") else array


def _is_png(file):
    return file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and file.stat().st_size > 10_000


# -- option_pricing.py ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def option():
    closes = pricing.load_closes()[1]
    last = float(closes[-1])
    return {"spot": last, "strike": last, "barrier": 1.5 * last, "rate": 0.02, "sigma": pricing.estimate(closes)["sigma"]}


@pytest.fixture(scope="module")
def quantlib(option):
    return pricing.quantlib(**option)


@pytest.fixture(scope="module")
def simulated(xp, option):
    return pricing.simulate(xp, 2**15, **option, seed=3)


def test_the_series_is_daily():
    dates, closes = pricing.load_closes()
    gaps = np.diff(dates).astype(int)
    assert len(dates) == 1047 and np.median(gaps) == 1 and gaps.max() <= 5  # weekends and holidays
    assert np.isfinite(closes).all() and closes.min() > 0


def test_estimate_recovers_a_known_law(rng):
    n, mu, sigma = 100_000, 0.1, 0.3
    returns = (mu - sigma**2 / 2) / 252 + sigma / math.sqrt(252) * rng.standard_normal(n)
    found = pricing.estimate(100 * np.exp(np.cumsum(returns)))
    assert abs(found["sigma"] - sigma) < 6 * found["sigma_error"] < 0.01
    assert abs(found["mu"] - mu) < 6 * found["mu_error"]


def test_european_is_black_scholes(simulated, option):
    prices, errors = pricing.summary(simulated)
    assert abs(prices[0] - pricing.black_scholes(**option)) < 4 * errors[0]


def test_asian_is_quantlib(simulated, quantlib):
    prices, errors = pricing.summary(simulated)
    assert abs(prices[1] - quantlib["asian"]) < 4 * errors[1]


def test_barrier_is_the_quadrature(simulated, option):
    prices, errors = pricing.summary(simulated)
    assert abs(prices[2] - pricing.barrier_by_quadrature(**option)) < 4 * errors[2]


def test_references_agree_with_quantlib(option, quantlib):
    assert quantlib["asian"] == pytest.approx(quantlib["asian, two moments"], rel=0.01)
    assert pricing.barrier_by_quadrature(**option) == pytest.approx(quantlib["up-and-out, shifted barrier"], rel=0.005)
    out_of_reach = {**option, "barrier": 100 * option["spot"]}
    assert pricing.barrier_by_quadrature(**out_of_reach) == pytest.approx(pricing.black_scholes(**option), rel=1e-6)


def test_payoffs_are_ordered(simulated):
    european, asian, knock_out = _host(simulated)
    assert ((knock_out == european) | (knock_out == 0)).all()
    assert (asian >= 0).all() and np.isfinite(european).all()


def test_option_pricing_runs_and_draws(side, tmp_path, capsys):
    assert pricing.main(["--device", side, "--paths", "4096", "--out", str(tmp_path)]) == 0
    assert _is_png(tmp_path / "option_pricing.png")
    printed = capsys.readouterr().out
    assert ("the CPU" in printed) == (side == "cpu")
    assert all(name in printed for name in ("European", "Asian", "up-and-out", "4,096 paths"))


def test_paths_do_not_depend_on_the_block(xp):
    drift, vol = pricing.per_day(0.1, 0.3)
    found = []
    for block in (256, 32):
        prices = xp.full((1000, 253), np.nan, F)
        pricing.whole_paths[philox.launch(1000, block=block)](prices, F(100), drift, vol, 5)
        found.append(_host(prices))
    assert np.array_equal(found[0], found[1])


def test_every_path_is_written(xp):
    """1000 paths are no multiple of 256 threads: ``paths // threads`` blocks would leave 232 of them out."""
    assert philox.launch_shape(1000, "cpu", 256)[0].x == 4
    drift, vol = pricing.per_day(0.1, 0.3)
    prices = xp.full((1000, 253), np.nan, F)
    pricing.whole_paths[philox.launch(1000, block=256)](prices, F(100), drift, vol, 5)
    assert np.isfinite(_host(prices)).all()


# -- laws -------------------------------------------------------------------------------------------------------------------------


@dm.kernel
def gbm_both_ways(last, spot, mu, sigma, steps, seed):
    """Rows of ``last`` (2, n): the price after ``steps`` steps of log return mu + sigma z, from their sum and from their product."""
    path = cuda.grid(1)
    if path < last.shape[1]:
        x, price = F(0), spot
        step = 0
        while step < steps:
            for z in philox.normal4(seed, path, step // 4):
                if step < steps:
                    x += mu + sigma * z
                    price *= math.exp(mu + sigma * z)
                step += 1
        last[0, path] = spot * math.exp(x)
        last[1, path] = price


@dm.kernel
def paths_by_grid_stride(prices, spot, mu, sigma, seed):
    """Row i of ``prices`` (n, 4 m): the prices of path i, whatever the grid."""
    for path in range(cuda.grid(1), prices.shape[0], cuda.gridsize(1)):
        x = F(0)
        for step in range(prices.shape[1] // 4):
            a, b, c, d = philox.normal4(seed, path, step)
            x += mu + sigma * a
            prices[path, 4 * step] = spot * math.exp(x)
            x += mu + sigma * b
            prices[path, 4 * step + 1] = spot * math.exp(x)
            x += mu + sigma * c
            prices[path, 4 * step + 2] = spot * math.exp(x)
            x += mu + sigma * d
            prices[path, 4 * step + 3] = spot * math.exp(x)


def test_gbm_has_its_law(xp):
    """252 columns are 251 steps from S0 = 100: mean 100 exp(251 (mu + sigma^2 / 2)) = 232.679, deviation 104.26."""
    mu, sigma, steps, paths = 0.003, 0.027, 251, 800_000
    mean = 100 * math.exp(steps * (mu + sigma**2 / 2))
    std = mean * math.sqrt(math.expm1(steps * sigma**2))
    assert (round(mean, 3), round(std, 2)) == (232.679, 104.26)
    last = xp.empty((2, paths), F)
    gbm_both_ways[philox.launch(paths)](last, F(100), F(mu), F(sigma), steps, 2026)
    by_sum, by_product = _host(last).astype(np.float64)
    assert abs(by_sum.mean() - mean) < 0.47
    assert by_sum.std() == pytest.approx(std, rel=0.01)
    assert np.abs(by_product / by_sum - 1).max() < 1e-4


def test_paths_do_not_depend_on_the_grid(xp):
    found = []
    for grid, block in ((1, 32), (8, 128)):
        prices = xp.full((1000, 64), np.nan, F)
        paths_by_grid_stride[grid, block](prices, F(100), F(0.003), F(0.027), 7)
        found.append(_host(prices))
    assert np.isfinite(found[0]).all()
    assert np.array_equal(found[0], found[1])


# -- fused_convolution.py -----------------------------------------------------------------------------------------------------------


def test_fused_convolution_is_scipys(xp):
    from skimage import data

    image = (data.camera() / 255).astype(np.complex64)
    blur = convolution.gaussian(2.0)
    for response in (blur, convolution.wiener(blur, 0.002)):
        got = _host(convolution.separable(xp, xp.asarray(image), xp.asarray(response)))
        assert convolution.relative_error(got, convolution.by_scipy(image, response)) < 1e-6


def test_a_few_rows_write_a_few_columns(xp, rng):
    """The last block may have no row to work on; nothing else is written."""
    rows = (rng.standard_normal((5, 512)) + 1j * rng.standard_normal((5, 512))).astype(np.complex64)
    response = (convolution.gaussian(1.0) / F(512)).astype(np.complex64)
    out = xp.full((512, 7), 9, np.complex64)
    convolution.filter_rows[convolution.fft.launch(5)](xp.asarray(rows), xp.asarray(response), out[:, :5])
    got = _host(out)
    want = np.fft.ifft(np.fft.fft(rows.astype(np.complex128)) * response * 512).T
    assert convolution.relative_error(got[:, :5], want) < 1e-6
    assert (got[:, 5:] == 9).all()


def test_fused_convolution_runs_and_draws(side, tmp_path, capsys):
    assert convolution.main(["--device", side, "--out", str(tmp_path)]) == 0
    assert _is_png(tmp_path / "fused_convolution.png")
    printed = capsys.readouterr().out
    assert ("the CPU" in printed) == (side == "cpu")
    gain = {line.split()[0]: float(line.split()[1]) for line in printed.splitlines() if " dB " in line}
    assert gain["restored"] > gain["blurred"] + 2


# -- devmath demo -----------------------------------------------------------------------------------------------------------------


def test_demo_runs_the_example_and_says_where(capsys, tmp_path):
    assert demo.main(["--device", "cpu", "--paths", "16384", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "ran on   the CPU" in printed
    assert [line.split()[0] for line in printed.splitlines() if " se  " in line] == ["European", "Asian,", "up-and-out"]
    assert (tmp_path / "option_pricing.png").stat().st_size > 10_000


def test_demo_without_the_example_says_so(monkeypatch):
    monkeypatch.setattr(demo, "_PLACES", ())
    with pytest.raises(ImportError, match="from a checkout"):
        demo.main([])
