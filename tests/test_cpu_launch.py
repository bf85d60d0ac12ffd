"""Launches on the CPU target: exceptions, many threads, forked processes, and how many workers there are."""

import multiprocessing
import threading

import numba
import numpy as np
import pytest
from numba import cuda

import devmath as dm

FFT = dm.fft.FFT(8)


@dm.kernel
def numbered(out):
    out[cuda.grid(1)] = 10 * cuda.blockIdx.x + cuda.threadIdx.x


def filled(kernel, config, n=8):
    """What *kernel* leaves in an array of zeros."""
    out = np.zeros(n)
    kernel[config](out)
    return out


@dm.kernel
def fails_at(where, out):
    i = cuda.grid(1)
    if i == where:
        raise ValueError("stopped here")
    out[i] = 1


@pytest.mark.parametrize("threads", [1, 2])
def test_an_exception_arrives_when_no_block_runs_any_more(threads):
    before = numba.get_num_threads()
    numba.set_num_threads(min(threads, before))
    out = np.zeros(4096)
    try:
        with pytest.raises(ValueError, match="^stopped here$"):
            fails_at[4096, 1](0, out)
        seen = out.copy()
        assert out[0] == 0
        assert fails_at[4096, 1](-1, out) is None
    finally:
        numba.set_num_threads(before)
    assert out.sum() == 4096
    if threads == 2 == numba.get_num_threads():
        assert seen[2048:].all()  # other workers finished their parts


def test_many_threads_launch_one_new_kernel_at_once():
    @dm.kernel
    def kernel(x):
        r, s, b = FFT.registers(), FFT.scratch(), FFT.batch()
        FFT.load(x[b], r)
        FFT.execute(r, s)
        FFT.store(r, x[b])

    barrier, failures = threading.Barrier(8), []

    def work(seed):
        x = np.random.default_rng(seed).standard_normal((16, 8)).astype(np.complex64)
        barrier.wait()
        for _ in range(10):
            y = x.copy()
            kernel[FFT.launch(16)](y)
            if not np.allclose(y, np.fft.fft(x), atol=1e-5):
                failures.append(seed)

    workers = [threading.Thread(target=work, args=(s,)) for s in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert failures == []


def _launch_in_child(queue):
    queue.put(filled(numbered, (2, 4)).tolist())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_launches():
    filled(numbered, (2, 4))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_launch_in_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60) == [0, 1, 2, 3, 10, 11, 12, 13]
    finally:
        child.join(timeout=10)
        if child.is_alive():
            child.kill()
    assert child.exitcode == 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_numba_says_how_many_threads_work(threads, monkeypatch):
    from devmath.targets import cpu

    asked = []
    real = cpu._pool
    monkeypatch.setattr(cpu, "_pool", lambda workers: asked.append(workers) or real(workers))
    monkeypatch.setattr(numba, "get_num_threads", lambda: threads)
    np.testing.assert_array_equal(filled(numbered, (8, 1)), 10 * np.arange(8))
    assert asked == ([] if threads == 1 else [threads])
    filled(numbered, (1, 8))  # one block is not worth a worker
    assert len(asked) == (threads > 1)


def test_an_empty_batch_runs_nothing():
    fails_at[dm.random.Philox().launch(0)](0, np.zeros(0))
    fails_at[FFT.launch(0)](0, np.zeros(0))
