"""The search for the fastest knobs of a plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from .. import arch as _arch
from .. import cache, fingerprint
from ..arguments import look_at
from ..codegen import versions
from ..errors import TuningError, one_of
from ..plan import Plan, _plain
from . import store, subjects
from .bench import Bench, OwnBench, Trial, default_batch
from .measure import Device, Gpu, compare
from .progress import Progress, reporter
from .workers import Built, Workers, cores, reason

#: A candidate must be faster than the default by this factor.
GAIN = 1.01


def tuned(
    plan: Plan,
    batch: int | None = None,
    pattern: str | Callable = "convolution",
    measure: Device | None = None,
    progress: bool | Progress | None = None,
    again: bool = False,
) -> Plan:
    """See :meth:`devmath.fft.FFT.tuned`."""
    entry = answer(plan, batch, pattern, measure, progress, again)
    return plan.replace(**entry["knobs"]) if entry and entry["knobs"] else plan


def answer(
    plan: Plan, batch: int | None, pattern: str | Callable, measure: Device | None, progress: bool | Progress | None, again: bool
) -> store.Entry | None:
    """The store's entry for a plan, measured now where there is none; ``None`` for a plan that has no knobs."""
    subject = subjects.of(plan)
    if not callable(pattern) and pattern not in subject.PATTERNS:
        raise ValueError(f"{one_of('pattern', pattern, subject.PATTERNS)}; or it is a function of the plan that gives a kernel and its arguments")
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise ValueError(f"batch must be an integer of at least 1, got {batch!r}")
    common = subject.common(plan.replace(arch=None), "transform" if callable(pattern) else pattern)
    if common.execution == "thread" or common.size == 1:
        return None
    device = measure or (Gpu() if _arch.device_count() else None)
    if device is None:
        return _without_device(plan, common, batch, pattern, again)
    if plan.arch is not None and _arch.parse(plan.arch).cc != device.arch.cc:
        raise TuningError(f"{plan.short_name()} was made for {plan.arch} and the device at hand is {device.arch}: leave arch out, or measure there")
    if callable(pattern):
        # As it is, without `common`: which of a plan and its inverse a kernel is made from is the user's.
        return _measured_own(plan.replace(arch=None), batch, pattern, device, progress, again)
    key = _key(common, pattern, batch or default_batch(common, pattern), device)
    entry = None if again else store.load(key)
    if entry is None:
        entry = _search(common, Bench(device, common, pattern, batch), key, pattern, progress)
        store.save(entry)
    return entry


def _key(plan: Plan, pattern: str, batch: int | None, device: Device | None, arch: str = "") -> dict[str, Any]:
    return {
        "plan": json.loads(plan.to_json()),
        "pattern": pattern,
        "batch": None if batch is None else batch_class(batch),
        "arch": device.arch.name if device else arch,
        "gpu": device.name if device else "",
        "driver": device.driver if device else "",
        "libmathdx": versions.libmathdx(),
        "devmath": store.code_version(),
    }


def batch_class(batch: int) -> int:
    """The power of two for which a measurement of *batch* problems serves: *batch* rounded up."""
    return 1 << (batch - 1).bit_length()


def _without_device(plan: Plan, common: Plan, batch: int | None, pattern: str | Callable, again: bool) -> store.Entry:
    """The store's answer for an architecture that is named."""
    what = "no CUDA device was found"
    if callable(pattern) or again:
        raise TuningError(
            f"{plan.short_name()} cannot be tuned here: {what}, and {'again=True' if again else 'a pattern of your own'} is measured on one"
        )
    if plan.arch is None:
        raise TuningError(f"{plan.short_name()} cannot be tuned here: {what}. For what was measured elsewhere, name an architecture: arch='sm_90a'")
    target = _arch.native(_arch.parse(plan.arch).cc).name
    entry = store.find(_key(common, pattern, batch or default_batch(common, pattern), None, target))
    if entry is None:
        raise TuningError(
            f"{plan.short_name()} cannot be tuned here: {what}, and nothing that was measured on {target} with these versions stands in "
            f"{store.directory()}. Measure there and bring it with `devmath tune export FILE` and `devmath tune import FILE`"
        )
    return entry


def _measured_own(plan: Plan, batch: int | None, pattern: Callable, device: Device, progress: bool | Progress | None, again: bool) -> store.Entry:
    """The answer for a user's own kernel: kept where what the kernel does can be told from its outside."""
    bench = OwnBench(device, pattern, batch)
    kernel, args, config = bench.made(plan)
    batch = batch or getattr(config, "batch", None)
    key = _key(plan, "", batch, device)
    try:
        looked = [look_at(a) for a in args]
        types = tuple(str(a.type) if a else "?" for a in looked)
        options = tuple(sorted((k, repr(v)) for k, v in kernel.options.items()))
        name = cache.digest(fingerprint.of_function(kernel.py_func), types, options)[:16]
        key["pattern"] = f"{kernel.py_func.__name__}:{name}"
    except fingerprint.Uncacheable:
        key["pattern"] = ""
    entry = store.load(key) if key["pattern"] and not again else None
    if entry is None:
        try:
            entry = _search(plan, bench, key, "own", progress)
        finally:
            bench.restore()
        if key["pattern"]:
            store.save(entry)
    return entry


def _search(plan: Plan, bench: Bench | OwnBench, key: dict[str, Any], pattern: str, progress: bool | Progress | None) -> store.Entry:
    subject, device = subjects.of(plan), bench.device
    now = subject.knobs_of(plan, device.arch)
    others = [p for p in subject.candidates(plan, device.arch) if subject.knobs_of(p, device.arch) != now]
    everyone = [plan, *others]
    report = reporter(progress, plan.short_name())
    dropped: dict[Plan, str] = {}
    built = _compiled(everyone, subject.PATTERNS[0] if pattern == "own" else pattern, device, report)
    trials: list[Trial] = []
    for number, candidate in enumerate(everyone):
        compiled = built[candidate]
        try:
            if compiled.error and pattern != "own":  # of one's own kernel the process that does not know it compiled a part alone
                raise TuningError(compiled.error)
            trials.append(bench.trial(candidate, compiled.kernels[0] if compiled.kernels else None))
        except Exception as e:
            if number == 0 and pattern == "own":
                raise  # what the others are compared with
            dropped[candidate] = str(e) if isinstance(e, TuningError) else reason(e)
        report(number + 1, len(everyone), "checked")
    if not trials:
        raise TuningError(f"{plan.short_name()}: no candidate works on {device.name}: {dropped[plan]}")
    times = dict(zip((t.plan for t in trials), compare(device, trials), strict=True))
    report(len(everyone), len(everyone), "measured")
    fastest = min(times, key=lambda p: times[p])
    keep = plan in times and times[plan] < GAIN * times[fastest]
    chosen = plan if keep else fastest

    def shown(p: Plan) -> dict[str, Any]:
        return now if p is plan else {k: _plain(p.fields[k]) for k in subject.KNOBS}

    return {
        "schema": store.SCHEMA,
        "key": key,
        "knobs": None if keep else {k: _plain(chosen.fields[k]) for k in subject.KNOBS},
        "ms": times[chosen],
        "default_ms": times.get(plan, times[chosen]),
        "batch": bench.batch if isinstance(bench, Bench) else key["batch"],
        "date": store.today(),
        "trials": [{"knobs": shown(p), **({"ms": times[p]} if p in times else {"dropped": dropped[p]})} for p in everyone],
    }


def _compiled(plans: list[Plan], pattern: str, device: Device, report: Progress) -> dict[Plan, Built]:
    """devmath's kernel of each plan, compiled in processes side by side. A user's own kernel, which they do not know, then finds the plans' code in
    the cache."""
    with Workers(min(cores(), len(plans))) as pool:
        futures: dict[Future[Built], Plan] = {pool.submit(p, [pattern], device.arch): p for p in plans}
        waiting = set(futures)
        while waiting:
            _, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            report(len(plans) - len(waiting), len(plans), "compiled")
        return {plan: future.result() for future, plan in futures.items()}
