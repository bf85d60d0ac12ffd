"""A GPU that is none, for tests of tuning: arrays are NumPy's, kernels run on the CPU target, times are what a test says."""

import functools
from concurrent.futures import Future

import numpy as np
import pytest

from devmath import arch
from devmath.fft import tune
from devmath.tuning.workers import Built


@pytest.fixture
def shared_kernels(monkeypatch):
    """All candidates of a plan have one kernel on the CPU, where knobs make no difference, so that it is compiled once."""
    make = functools.cache(tune._registers)
    monkeypatch.setattr(tune, "_registers", lambda *plans: make(*(p.replace(**dict.fromkeys(tune.KNOBS)) for p in plans)))


class FakeGpu:
    """A device whose launches take ``time(trial)`` milliseconds."""

    def __init__(self, time, name="Fake GPU", target="sm_90a", driver="CUDA 13.0"):
        self.arch, self.name, self.driver = arch.parse(target), name, driver
        self._time = time
        self.timed = []

    def put(self, host):
        return host.copy(order="K")

    def get(self, array):
        return array.copy(order="K")

    def set(self, array, host):
        array[...] = host

    def synchronize(self):
        pass

    def milliseconds(self, launch, launches):
        self.timed.append(launch)
        return self._time(launch)


class FakeWorkers:
    """Workers that compile nothing, and fail where *refuse(plan)* has a reason."""

    def __init__(self, refuse=lambda plan: ""):
        self.jobs, self._refuse = [], refuse

    def __call__(self, count=None):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, plan, patterns, target):
        self.jobs.append((plan, tuple(patterns), target))
        future = Future()
        future.set_result(Built((), self._refuse(plan)))
        return future


def fastest(**knobs):
    """A time of 1 ms for plans with these fields, 2 ms for others."""
    return lambda trial: 1.0 if all(trial.plan.fields[k] == v for k, v in knobs.items()) else 2.0


def damage(y):
    """Write something else."""
    y[...] = np.roll(y, 1, axis=0)
