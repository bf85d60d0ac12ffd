"""Price three options on a real share by simulating its daily closes inside one kernel, on the GPU or on the CPU.

    python examples/option_pricing.py --device auto --out .

A share follows geometric Brownian motion, dS = mu S dt + sigma S dW. Its volatility sigma comes from a real series: Google's daily
closes from 2004-08-19 to 2008-10-14, which ship with matplotlib (mpl-data/sample_data/goog.npz). The options end in a year of 252
trading days and are priced with the risk-free rate as drift. Each thread walks one path and draws its normals where it needs them:
three payoffs a path are all that reaches memory.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import cuda

import devmath as dm

DAYS = 252  # trading days a year; the kernels take four of them at a time
F = np.float32
rng = dm.random.Philox()  # has no memory: (seed, path, step) gives four numbers, whichever thread asks


# -- the kernels ----------------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def one_close(x, total, high, spot):
    """Add the close at log return ``x`` to a path's sum and maximum."""
    close = spot * math.exp(x)
    return total + close, max(high, close)


@dm.kernel(fastmath=True)
def payoffs_of_paths(payoffs, spot, strike, barrier, drift, vol, seed):
    """Column i of ``payoffs`` (3, n): what path i pays on the European, Asian and barrier call; ``drift`` and ``vol`` are a day's."""
    path = cuda.grid(1)
    if path < payoffs.shape[1]:  # the last block may have threads to spare
        x, total, high = F(0), F(0), F(0)
        for step in range(DAYS // 4):
            a, b, c, d = rng.normal4_fast_scaled(seed, path, step, drift, vol)  # four days' log returns, drift + vol * z
            x += a
            total, high = one_close(x, total, high, spot)
            x += b
            total, high = one_close(x, total, high, spot)
            x += c
            total, high = one_close(x, total, high, spot)
            x += d
            total, high = one_close(x, total, high, spot)
        european = max(spot * math.exp(x) - strike, F(0))
        payoffs[0, path] = european
        payoffs[1, path] = max(total / F(DAYS) - strike, F(0))
        payoffs[2, path] = european if high < barrier else F(0)


@dm.kernel(fastmath=True)
def whole_paths(prices, spot, drift, vol, seed):
    """Row i of ``prices`` (n, 253): path i from today on, for looking at."""
    path = cuda.grid(1)
    if path < prices.shape[0]:
        x = F(0)
        prices[path, 0] = spot
        for step in range(DAYS // 4):
            a, b, c, d = rng.normal4_fast_scaled(seed, path, step, drift, vol)
            prices[path, 4 * step + 1] = spot * math.exp(x + a)
            prices[path, 4 * step + 2] = spot * math.exp(x + a + b)
            prices[path, 4 * step + 3] = spot * math.exp(x + a + b + c)
            x += a + b + c + d
            prices[path, 4 * step + 4] = spot * math.exp(x)


# -- from data to prices --------------------------------------------------------------------------------------------------------


def load_closes() -> tuple[np.ndarray, np.ndarray]:
    """Dates and adjusted closes of Google's share."""
    from matplotlib import cbook

    table = cbook.get_sample_data("goog.npz")["price_data"]
    return table["date"], table["adj_close"]


def estimate(closes: np.ndarray) -> dict[str, float]:
    """Drift and volatility a year with their standard errors, from the daily log returns."""
    returns = np.diff(np.log(closes))
    sigma, years = float(returns.std(ddof=1)) * math.sqrt(DAYS), len(returns) / DAYS
    mu = float(returns.mean()) * DAYS + sigma**2 / 2
    return {"mu": mu, "mu_error": sigma / math.sqrt(years), "sigma": sigma, "sigma_error": sigma / math.sqrt(2 * len(returns))}


def per_day(mu: float, sigma: float) -> tuple[np.float32, np.float32]:
    """Mean and standard deviation of a day's log return."""
    return F((mu - sigma**2 / 2) / DAYS), F(sigma / math.sqrt(DAYS))


def simulate(xp: Any, paths: int, spot: float, strike: float, barrier: float, rate: float, sigma: float, seed: int = 1) -> Any:
    """Discounted payoffs (3, paths) as an array of ``xp``, NumPy or CuPy: the array says where the kernel runs."""
    payoffs = xp.empty((3, paths), F)
    payoffs_of_paths[rng.launch(paths)](payoffs, F(spot), F(strike), F(barrier), *per_day(rate, sigma), seed)
    payoffs *= F(math.exp(-rate))
    return payoffs


def summary(payoffs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Prices and their standard errors, on the host."""
    mean, std = payoffs.mean(axis=1, dtype=np.float64), payoffs.std(axis=1, dtype=np.float64)
    return np.array(mean.tolist()), np.array(std.tolist()) / math.sqrt(payoffs.shape[1])


# -- what the prices should be --------------------------------------------------------------------------------------------------


def black_scholes(spot: float, strike: float, barrier: float, rate: float, sigma: float) -> float:
    """A European call; it has no barrier."""
    d = (math.log(spot / strike) + rate) / sigma + sigma / 2
    return spot * math.erfc(-d / math.sqrt(2)) / 2 - strike * math.exp(-rate) * math.erfc((sigma - d) / math.sqrt(2)) / 2


def barrier_by_quadrature(spot: float, strike: float, barrier: float, rate: float, sigma: float) -> float:
    """An up-and-out call watched at each close: 252 integrals over a day's normal law, on Gauss points on both sides of the strike."""
    drift, vol = (rate - sigma**2 / 2) / DAYS, sigma / math.sqrt(DAYS)
    points, weights = np.polynomial.legendre.leggauss(400)
    low, kink, high = -8 * sigma, math.log(strike / spot), math.log(barrier / spot)
    x = np.concatenate([(b - a) / 2 * points + (a + b) / 2 for a, b in ((low, kink), (kink, high))])
    w = np.concatenate([(b - a) / 2 * weights for a, b in ((low, kink), (kink, high))]) / (vol * math.sqrt(2 * math.pi))
    value = np.maximum(spot * np.exp(x) - strike, 0)
    next_day = w * np.exp(-(((x - x[:, None] - drift) / vol) ** 2) / 2)
    for _ in range(DAYS - 1):
        value = next_day @ value
    return math.exp(-rate) * float((w * np.exp(-(((x - drift) / vol) ** 2) / 2)) @ value)


def quantlib(spot: float, strike: float, barrier: float, rate: float, sigma: float) -> dict[str, float]:
    """QuantLib's Asian price (Sobol paths, geometric control), and its quick approximations of the Asian and the barrier call."""
    import QuantLib as ql

    today = ql.Date(14, 10, 2008)
    ql.Settings.instance().evaluationDate = today
    closes = [today + day for day in range(1, DAYS + 1)]  # 252 calendar days stand for the year: rate and volatility are stretched to suit
    stretch, clock = 365 / DAYS, ql.Actual365Fixed()
    process = ql.BlackScholesProcess(
        ql.QuoteHandle(ql.SimpleQuote(spot)),
        ql.YieldTermStructureHandle(ql.FlatForward(today, rate * stretch, clock)),
        ql.BlackVolTermStructureHandle(ql.BlackConstantVol(today, ql.NullCalendar(), sigma * math.sqrt(stretch), clock)),
    )
    payoff, exercise = ql.PlainVanillaPayoff(ql.Option.Call, strike), ql.EuropeanExercise(closes[-1])
    asian = ql.DiscreteAveragingAsianOption(ql.Average.Arithmetic, closes, payoff, exercise)
    sobol = {"brownianBridge": True, "controlVariate": True, "requiredSamples": 2**14 - 1, "seed": 1}
    asian.setPricingEngine(ql.MCDiscreteArithmeticAPEngine(process, "lowdiscrepancy", **sobol))
    found = {"asian": asian.NPV()}
    asian.setPricingEngine(ql.TurnbullWakemanAsianEngine(process))
    found["asian, two moments"] = asian.NPV()
    # Broadie, Glasserman and Kou (1997): a barrier watched daily is like one watched all the time a little further off.
    shifted = barrier * math.exp(0.5826 * sigma / math.sqrt(DAYS))
    knock_out = ql.BarrierOption(ql.Barrier.UpOut, shifted, 0.0, payoff, exercise)
    knock_out.setPricingEngine(ql.AnalyticBarrierEngine(process))
    return {**found, "up-and-out, shifted barrier": knock_out.NPV()}


# -- the picture, and the command line ------------------------------------------------------------------------------------------


def draw(file: Path, dates: np.ndarray, closes: np.ndarray, fan: np.ndarray, asian: np.ndarray, reference: float) -> None:
    """History and fan of paths; and the Asian prices that 2^8, 2^9, ... paths give."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained", dpi=110)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    figure.get_layout_engine().set(wspace=0.04)
    ahead = np.busday_offset(dates[-1], np.arange(fan.shape[1]))
    left.plot(dates[-756:], closes[-756:], color="0.2", lw=1, label="Google")
    left.plot(ahead, fan[:10].T, color="C0", lw=0.5, alpha=0.6)
    for low, high, alpha in ((5, 95, 0.15), (25, 75, 0.25)):
        band = np.percentile(fan, (low, high), axis=0)
        left.fill_between(ahead, *band, color="C0", alpha=alpha, lw=0, label=f"{high - low} % of the paths")
    left.plot(ahead, np.median(fan, axis=0), color="C0", lw=1.8, label="median")
    left.set(title=f"Google's last three years, and {len(fan):,} paths for the next", ylabel="close (US$)")
    left.set(xlim=(dates[-756], ahead[-1]), ylim=(0, 1.2 * np.percentile(fan[:, -1], 95)))
    left.set_xticks(np.arange("2006", "2010", dtype="datetime64[Y]"), range(2006, 2010))

    n = 2 ** np.arange(8, int(math.log2(len(asian))) + 1)
    error = float(asian.std()) / np.sqrt(n)
    right.fill_between(n, reference - 2 * error, reference + 2 * error, color="C1", alpha=0.25, lw=0, label="± 2 standard errors")
    right.axhline(reference, color="C1", lw=1.5, label=f"QuantLib, {reference:.2f}")
    for k in n:
        runs = asian[: len(asian) // k * k].reshape(-1, k)[:40].mean(axis=1)
        right.plot(np.full(len(runs), k), runs, ".", color="0.2", ms=5, mew=0, alpha=0.5)
    right.plot([], [], ".", color="0.2", ms=5, label="runs of that many paths")
    right.set_xscale("log", base=2)
    right.set(title="Asian call: the error falls as 1/√paths", xlabel="paths", ylabel="price (US$)")
    for axes in (left, right):
        axes.legend(frameon=False, loc="upper left" if axes is left else "upper right")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def array_module(device: str) -> tuple[Any, str]:
    """CuPy and the GPU's name, or NumPy and the CPU."""
    if device == "cpu" or (device == "auto" and not cuda.is_available()):
        return np, f"the CPU, {numba.get_num_threads()} threads"
    import cupy

    return cupy, cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto")
    parser.add_argument("--paths", type=int, help="number of paths (default: 2^17 on the CPU, 2^22 on the GPU)")
    parser.add_argument("--rate", type=float, default=0.02, help="risk-free rate a year (default: 0.02)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for option_pricing.png")
    args = parser.parse_args(argv)
    try:
        dates, closes = load_closes()
        xp, where = array_module(args.device)
        known, last = estimate(closes), float(closes[-1])
        option = {"spot": last, "strike": last, "barrier": 1.5 * last, "rate": args.rate, "sigma": known["sigma"]}
        theirs = quantlib(**option)
    except ImportError as e:
        parser.exit(1, f"{e.name} is missing: pip install " + ("cupy-cuda13x\n" if e.name == "cupy" else "'devmath[examples]'\n"))

    paths = args.paths or (2**17 if xp is np else 2**22)
    start = time.perf_counter()
    summary(simulate(xp, 256, **option))
    first = time.perf_counter() - start  # with compilation, or the compiled kernel's way from the cache
    start = time.perf_counter()
    payoffs = simulate(xp, paths, **option, seed=args.seed)
    prices, errors = summary(payoffs)
    seconds = time.perf_counter() - start

    print(f"data     Google, {len(closes)} daily closes {dates[0]} to {dates[-1]} (matplotlib's sample data)")
    print(f"a year   drift {known['mu']:.2f} ± {known['mu_error']:.2f}, volatility {known['sigma']:.4f} ± {known['sigma_error']:.4f}")
    print(f"options  one-year calls at the money, {last:.2f} US$, rate {args.rate:.1%}")
    print(f"ran on   {where}: {paths:,} paths of {DAYS} days in {seconds:.3g} s (the first call took {first:.2g} s)\n")
    print(f"{'call':<22} {'price':>8} {'std err':>8} {'reference':>10} {'off by':>9}")
    rows = [("European", black_scholes(**option), "Black-Scholes")]
    rows += [("Asian, daily mean", theirs["asian"], "QuantLib, Sobol paths with control")]
    rows += [(f"up-and-out at {option['barrier']:.2f}", barrier_by_quadrature(**option), "quadrature day by day")]
    for (name, reference, by), price, error in zip(rows, prices, errors, strict=True):
        print(f"{name:<22} {price:8.4f} {error:8.4f} {reference:10.4f} {(price - reference) / error:+6.1f} se  {by}")
    print("QuantLib's quick approximations:", "; ".join(f"{name} {value:.4f}" for name, value in list(theirs.items())[1:]))

    fan = xp.empty((4096, DAYS + 1), F)
    whole_paths[rng.launch(len(fan))](fan, F(last), *per_day(known["mu"], known["sigma"]), args.seed)
    on_host = np.asarray if xp is np else xp.asnumpy
    args.out.mkdir(parents=True, exist_ok=True)
    draw(args.out / "option_pricing.png", dates, closes, on_host(fan), on_host(payoffs[1]), theirs["asian"])
    print(f"picture  {args.out / 'option_pricing.png'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
