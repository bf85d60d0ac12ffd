"""The sweep that measures the defaults of FFT plans, with a timer that is none."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from tuning_support import FakeGpu, FakeWorkers, fastest, shared_kernels  # noqa: F401

from devmath import arch
from devmath.fft import FFT, defaults
from devmath.targets.cuda import available
from devmath.tuning import bench, workers

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

if not available():
    pytest.skip("the benchmarks import numba-cuda", allow_module_level=True)

import tune_defaults as td  # noqa: E402

SM90 = arch.parse("sm_90a")
CASE = td.Case("c2c", "float32", 64)


@pytest.fixture(autouse=True)
def _small(monkeypatch, shared_kernels):  # noqa: F811
    """Little data, and no questions to the machine."""
    monkeypatch.setattr(bench, "DATA", 1 << 16)
    monkeypatch.setattr(td.record, "versions", lambda: {"devmath": "0.1.0", "libmathdx": "0.4.2", "nvcc": "13"})
    monkeypatch.setattr(td.record, "commit", lambda: "abc")


def sweep(device, cases, path, deadline=None, pool=None):
    return td.sweep(device, cases, path, time.monotonic() + 60 if deadline is None else deadline, pool or FakeWorkers())


def rows(path):
    return {td.Case(r["kind"], r["precision"], r["size"]): (run, r) for run in json.loads(path.read_text())["runs"] for r in run["rows"]}


def test_what_is_most_valuable_comes_first():
    kinds = list(dict.fromkeys((c.kind, c.precision, not c.size & (c.size - 1)) for c in td.CASES))
    assert kinds == [
        ("c2c", "float64", True), ("real", "float32", True), ("real", "float64", True), ("c2c", "float32", True),
        ("c2c", "float32", False), ("real", "float32", False), ("c2c", "float64", False),
        ("c2c", "float16", True), ("real", "float16", True),
    ]  # fmt: skip
    assert [c.size for c in td.CASES[:8]] == [64, 128, 256, 512, 1024, 2048, 4096, 8192]
    assert len(set(td.CASES)) == len(td.CASES)


@pytest.mark.parametrize("case", [td.CASES[0], td.CASES[10], td.CASES[20], td.CASES[26], *td.CASES[34:36], td.CASES[-1]], ids=lambda c: c.name)
def test_candidates_are_valid_and_have_what_is_the_default_now(case):
    found = td.to_measure(case, SM90)
    assert len(set(found)) == len(found) >= 1
    for plan in found:
        assert plan.traits("sm_90a").elements_per_thread == plan.fields["elements_per_thread"]
        assert plan.traits("sm_90a").block_dim == plan.inverse().traits("sm_90a").block_dim
    now = case.plan().traits("sm_90a")
    assert (now.implementation, now.elements_per_thread, now.ffts_per_block) in map(td.knobs, found)


def test_a_sweep_writes_what_is_fastest(tmp_path, capsys):
    path = tmp_path / "defaults.json"
    pool, device = FakeWorkers(), FakeGpu(fastest(implementation="devmath", elements_per_thread=4, ffts_per_block=8))
    assert sweep(device, [CASE], path, pool=pool) == 1
    run, row = rows(path)[CASE]
    assert (row["default"], row["devmath"]) == ("devmath", [4, 8])
    assert row["GBps"]["devmath"]["transform"] == pytest.approx(2 * row["GBps"]["cufftdx"]["transform"], rel=1e-4)
    assert (run["gpu"], run["arch"], run["commit"]) == ("Fake GPU", "sm_90", "abc")
    assert run["versions"] == {"devmath": "0.1.0", "libmathdx": "0.4.2"}
    assert [p for p, *_ in pool.jobs] == td.to_measure(CASE, SM90)
    assert all(patterns == ("convolution", "transform") and target == SM90 for _, patterns, target in pool.jobs)
    assert "c2c.float32.64" in capsys.readouterr().out
    # It starts from devmath's own file, and can take its place.
    assert set(rows(path)) == set(rows(defaults.PATH)) | {CASE}
    assert defaults.write(defaults.read(path.read_text())) == path.read_text()
    assert len([r for r in rows(path).values() if r[1]["size"] == 64 and r[1]["precision"] == "float32"]) == 1


def test_the_other_implementation_must_be_faster_by_more_than_a_percent(tmp_path):
    for ms, expected in ((0.995, "devmath"), (0.97, "cufftdx")):
        path = tmp_path / f"{expected}.json"
        sweep(FakeGpu(lambda t, ms=ms: ms if t.plan.fields["implementation"] == "cufftdx" else 1.0), [CASE], path)
        assert rows(path)[CASE][1]["default"] == expected


def test_knobs_stay_where_others_gain_less_than_a_percent(tmp_path):
    now = td.current(CASE, SM90)["devmath"]
    for gain, changed in ((1.005, False), (1.02, True)):
        path = tmp_path / f"{gain}.json"
        time_of = fastest(implementation="devmath", elements_per_thread=32, ffts_per_block=16)
        sweep(FakeGpu(lambda t, g=gain, f=time_of: 1 / g if f(t) == 1.0 else 1.0), [CASE], path)
        assert (rows(path)[CASE][1]["devmath"] != list(td.knobs(now)[1:])) == changed


def test_it_goes_on_where_it_stopped(tmp_path, capsys):
    path, device = tmp_path / "defaults.json", FakeGpu(fastest(elements_per_thread=8))
    other = td.Case("real", "float64", 128)
    assert sweep(device, [CASE], path) == 1
    pool = FakeWorkers()
    assert sweep(device, [CASE, other], path, pool=pool) == 1
    assert {p.size for p, *_ in pool.jobs} == {128}
    assert "1 of 2 rows stand in" in capsys.readouterr().out
    assert {CASE, other} <= set(rows(path))
    runs = [run for run in json.loads(path.read_text())["runs"] if run["gpu"] == "Fake GPU"]
    assert len(runs) == 1
    assert sweep(FakeGpu(fastest(), name="Other GPU"), [CASE], path) == 1, "another GPU of the architecture measures anew"
    assert rows(path)[CASE][0]["gpu"] == "Other GPU"
    assert sweep(FakeGpu(fastest(), target="sm_80"), [CASE], path) == 1
    assert len([r for run in json.loads(path.read_text())["runs"] for r in run["rows"] if td.Case(r["kind"], r["precision"], r["size"]) == CASE]) == 2


def test_it_stops_in_time_with_what_it_has(tmp_path, capsys):
    class Slow(FakeWorkers):
        def submit(self, plan, patterns, target):
            return super().submit(plan, patterns, target) if plan.size == 64 else Future()

    path, began = tmp_path / "defaults.json", time.monotonic()
    count = sweep(FakeGpu(fastest()), [CASE, td.Case("c2c", "float32", 128)], path, time.monotonic() + 3, Slow())
    assert count == 1 and time.monotonic() - began < 20
    assert CASE in rows(path)
    assert "out of time: 1 rows left, from c2c.float32.128 on" in capsys.readouterr().out


def test_what_fails_is_left_out(tmp_path, capsys):
    def refuse(plan):
        return "CodegenError: no" if plan.fields["implementation"] == "cufftdx" else ""

    path = tmp_path / "defaults.json"
    assert sweep(FakeGpu(fastest()), [CASE], path, pool=FakeWorkers(refuse)) == 1
    assert "cufftdx" not in rows(path)[CASE][1]
    assert "CodegenError: no" in capsys.readouterr().out
    assert sweep(FakeGpu(fastest()), [td.Case("c2c", "float32", 100)], path, pool=FakeWorkers(refuse)) == 0
    assert "nothing could be measured" in capsys.readouterr().out


def test_wrong_results_are_left_out(tmp_path, monkeypatch, capsys):
    class Wrong(FakeGpu):
        def get(self, array):
            return super().get(array) * (1 if self.checks.pop() else 1.01)

        checks: list

    device = Wrong(fastest())
    device.checks = [True] * 1000 + [False]
    assert sweep(device, [CASE], tmp_path / "defaults.json") == 1
    assert "wrong result: relative error 0.01, the most is 1e-05" in capsys.readouterr().out


def test_rows_are_selected():
    assert {c.precision for c in td.select(["c2c.float64"])} == {"float64"}
    assert [c.name for c in td.select(["real.*.512"])] == ["real.float32.512", "real.float64.512", "real.float16.512"]
    with pytest.raises(SystemExit, match="no row matches nonsense"):
        td.select(["nonsense"])


@pytest.mark.skipif(arch.device_count() > 0, reason="for a machine without a GPU")
def test_it_needs_a_gpu(tmp_path):
    with pytest.raises(SystemExit, match="no"):
        td.main(["--out", str(tmp_path / "f.json")])


@pytest.mark.slow
def test_candidates_are_compiled_in_worker_processes():
    """For an architecture that is named; no GPU is needed."""
    plans = [p for p in td.to_measure(CASE, SM90) if p.fields["implementation"] == "devmath"][:3]
    with workers.Workers(2) as pool:
        built = [f.result(300) for f in [pool.submit(p, td.PATTERNS, SM90) for p in [*plans, FFT(64, arch="sm_80")]]]
    for plan, result in zip(plans, built, strict=False):
        assert result.error == "" and [k.arch for k in result.kernels] == [SM90, SM90]
        assert {p for k in result.kernels for p, _ in k.plans} == {plan, plan.inverse()}
        assert all(k.cubin[:4] == b"\x7fELF" for k in result.kernels)
    assert built[-1].error == "PlanError: FFT(64) was made for sm_80 and is used on sm_90a; leave arch out, or make it for sm_90a"


@pytest.mark.gpu
def test_a_row_is_measured_on_the_gpu(tmp_path):
    path = tmp_path / "defaults.json"
    assert td.main(["--only", "c2c.float32.64", "--out", str(path), "--limit", "200"]) == 0
    assert rows(path)[CASE][1]["GBps"]["devmath"]["transform"] > 10
