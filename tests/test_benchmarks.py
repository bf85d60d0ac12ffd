"""The benchmark runner: its checks refuse wrong results, its records merge, and its kernels compile."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import types
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from devmath import arch
from devmath.arguments import look_at
from devmath.targets.cuda import available

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

if not available():
    pytest.skip("the benchmarks import numba-cuda", allow_module_level=True)

import asian  # noqa: E402
import peers  # noqa: E402
import record  # noqa: E402
import rows_fft  # noqa: E402
import rows_rng  # noqa: E402
import rows_start  # noqa: E402
import run  # noqa: E402
import timing  # noqa: E402
from record import Measured, Row, Target  # noqa: E402

STAMP = {"date": "2026-01-02", "commit": "abc"}
SESSION = run.Session(peers.Peers(False))
GPU_KERNELS = [name for name, row in run.ROWS.items() if row.kernels()]


# -- the table -----------------------------------------------------------------


def test_every_row_has_a_target_and_every_target_a_row():
    measured = {**rows_fft.ROWS, **rows_rng.ROWS, **rows_start.ROWS}
    sizes = (128, 256, 512, 1024, 2048, 4096)
    expected = {f"fft.{kind}.c64.{n}" for kind in ("conv", "c2c") for n in sizes} | {"fft.conv.c128.512"}
    expected |= {f"fft.r2c.f32.{n}" for n in sizes[1:]}
    expected |= {"mc.gbm_asian.f32", "mc.gbm_asian.f64", "mc.gbm_paths.f32", "rng.philox_bits", "launch.overhead", "size.cubin.fft512"}
    expected |= {f"start.{state}.{what}" for state in ("warm", "cold") for what in ("fft", "rng")}
    expected |= {"cpu.conv.c64.512", "cpu.gbm_asian.f32"}
    assert set(measured) == set(record.TARGETS) == set(run.ROWS) == expected
    assert all(record.TARGETS[name].text(row.unit) for name, row in measured.items())


@pytest.mark.parametrize(
    ("target", "value", "missed"),
    [
        (Target(least=1000), 1000, 0),
        (Target(least=1000), 999, 1),
        (Target(most=4), 4.1, 1),
        (Target(of_copy=0.9), 901, 0),
        (Target(of_copy=0.9), 899, 1),
        (Target(over={"peer": 1.4}), 141, 0),
        (Target(over={"peer": 1.4}), 139, 1),
        (Target(under={"peer": 0.8}), 79, 0),
        (Target(under={"peer": 0.8}), 81, 1),
        (Target(over={"absent": 1.0}), 1e9, 1),
        (Target(of_copy=0.9, over={"peer": 10}), 10, 2),
    ],
)
def test_targets_are_judged(target, value, missed):
    assert len(target.missed(value, 1000, {"peer": 100})) == missed


def test_a_rate_without_a_copy_rate_is_not_met():
    assert Target(of_copy=0.9).missed(1e9, None, {}) == ["copy rate not measured"]


def test_patterns_select_rows():
    assert run.select([]) == list(record.TARGETS)
    assert run.select(["cpu"]) == ["cpu.conv.c64.512", "cpu.gbm_asian.f32"]
    assert run.select(["fft.*.512", "size.*"]) == ["fft.conv.c64.512", "fft.conv.c128.512", "fft.c2c.c64.512", "fft.r2c.f32.512", "size.cubin.fft512"]
    with pytest.raises(SystemExit, match="no row matches nonsense"):
        run.select(["nonsense"])
    assert run.conv_sizes(["fft.conv.c64.128", "fft.conv.c128.512", "fft.c2c.c64.256"]) == {"complex64": [128], "complex128": [512]}


# -- checks can fail -----------------------------------------------------------


class _Convolution:
    """Stands in for the kernel: a convolution in double precision, with a fault put in."""

    def __init__(self, fault):
        self.fault = fault

    def __getitem__(self, cfg):
        def launch(x, h, y, scale):
            y[:] = np.fft.ifft(np.fft.fft(x.astype(np.complex128)) * h)
            self.fault(y)

        return launch


def _one_element(y):
    y[-1, -1] *= 1 + 1e-4


def _unwritten_row(y):
    y[0] = np.nan


def _scaled(y):
    y *= y.shape[1]


@pytest.mark.parametrize(("fault", "right"), [(lambda y: None, True), (_one_element, False), (_unwritten_row, False), (_scaled, False)])
def test_convolution_check_refuses(monkeypatch, fault, right):
    monkeypatch.setattr(rows_fft, "convolution", lambda fft: _Convolution(fault))
    got = rows_fft.measure_cpu(SESSION, batch=40, size=64)
    assert (got.value is not None) == right
    assert (got.check["rel_l2"] < got.check["limit"]) == right


def test_double_precision_is_checked_to_1e_14():
    x = timing.random_rows(np, 3, 512, np.complex128)
    h = timing.random_rows(np, 1, 512, np.complex128)[0]
    y = np.fft.ifft(np.fft.fft(x) * h)
    assert rows_fft.error(x, y, h) < rows_fft.ERROR_LIMIT["c128"] < rows_fft.error(x, y * (1 + 2e-14), h)
    assert rows_fft.error(x, np.fft.fft(x), None) < rows_fft.ERROR_LIMIT["c128"]


def test_sample_holds_the_first_and_last():
    rows = rows_fft.sample(10_000, np.random.default_rng(0))
    assert {0, 7, 9_992, 9_999} <= set(rows) and len(rows) > 100 and rows.max() < 10_000
    assert set(rows_fft.sample(3, np.random.default_rng(0))) == {0, 1, 2}


_PATHS = 1 << 14


def _averages(seed, drift=asian.DRIFT):
    return asian.prices(asian.normals(seed, _PATHS, asian.STEPS, np.float32), drift, asian.VOL).mean(axis=1)


def _payoffs(average, strike):
    return np.maximum(average - strike, 0).astype(np.float32)


def _right(strike, seed):
    return _payoffs(_averages(seed), strike)


def _one_path(strike, seed):
    average = _averages(seed)
    average[17] *= 1.01
    return _payoffs(average, strike)


def _drift_of_later_paths(strike, seed):
    average = _averages(seed)
    average[asian.COMPARED :] = _averages(seed, 2 * asian.DRIFT)[asian.COMPARED :]
    return _payoffs(average, strike)


def _missing_paths(strike, seed):
    payoff = _right(strike, seed)
    payoff[-1] = np.nan
    return payoff


def _strike_ignored(strike, seed):
    return _right(0.0, seed)


@pytest.mark.parametrize("payoff", [_right, _one_path, _drift_of_later_paths, _missing_paths, _strike_ignored])
def test_asian_check_refuses(payoff):
    right, found = asian.check(payoff, np.float32, 7)
    assert right == (payoff is _right), found


def test_reference_price_agrees_with_plain_sampling():
    price, error = asian.reference_price(np.random.default_rng(1))
    assert error < 0.005
    average = asian.prices(np.random.default_rng(2).standard_normal((20_000, asian.STEPS)), asian.DRIFT, asian.VOL).mean(axis=1)
    assert abs(asian.standard_errors(np.maximum(average - asian.STRIKE, 0), price, error)) < 4
    assert abs(asian.standard_errors(average, asian.expected_average())) < 4


def test_philox_gives_the_published_words():
    assert [hex(w) for w in asian.philox(0, 1, 1).ravel()] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def test_fold_is_the_rolling_hash():
    words = np.random.default_rng(0).integers(0, 1 << 32, 1000, dtype=np.uint32)
    expected = 0
    for w in words:
        expected = (expected * 31 + int(w)) % (1 << 32)
    assert rows_rng.fold(words) == expected


def test_host_time_of_launches_is_measured_in_turn():
    calls = []
    us = rows_start.microseconds({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, lambda: None, rounds=3, count=2)
    assert "".join(calls) == "ab" + "aabb" * 3 and set(us) == {"a", "b"} and min(us.values()) > 0


# -- rows on the CPU, and the GPU rows' kernels where they are the same ---------


@pytest.fixture
def tiny_cpu_rows(monkeypatch):
    for name, measure in (
        ("cpu.conv.c64.512", partial(rows_fft.measure_cpu, batch=40, size=64)),
        ("cpu.gbm_asian.f32", partial(rows_rng.measure_asian_cpu, paths=1 << 12)),
    ):
        monkeypatch.setitem(run.ROWS, name, run.ROWS[name]._replace(measure=measure))


def test_cpu_rows_end_in_a_record(tiny_cpu_rows, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DEVMATH_COMMIT", "abc")
    monkeypatch.setattr(timing, "device_name", lambda: None)
    path = tmp_path / "record.json"
    record.save(path, {"copy_GBps": 4000, "rows": [{"name": "mc.gbm_asian.f32", "value": 1, "commit": "older"}]})
    assert run.main(["--only", "cpu", "--no-baselines", "--out", str(path)]) == 0
    found = json.loads(path.read_text())
    rows = {r["name"]: r for r in found["rows"]}
    assert list(rows) == ["mc.gbm_asian.f32", "cpu.conv.c64.512", "cpu.gbm_asian.f32"]
    assert rows["mc.gbm_asian.f32"]["commit"] == "older" and found["copy_GBps"] == 4000
    for name in ("cpu.conv.c64.512", "cpu.gbm_asian.f32"):
        assert rows[name]["value"] > 0 and rows[name]["commit"] == "abc" and not rows[name]["met"]
    assert rows["cpu.gbm_asian.f32"]["check"]["average"]["rel_l2"] < 1e-5
    assert "libmathdx" in found["versions"] and "cache" not in found["versions"]


def test_f64_option_is_right_on_the_cpu():
    kernel, out = rows_rng.asian_f64(), np.empty(1 << 12)

    def payoff(strike, seed):
        kernel[rows_rng.rng.launch(out.size)](*rows_rng.asian_arguments(out, np.float64, strike, seed))
        return out.copy()

    right, found = asian.check(payoff, np.float64, SESSION.seed())
    assert right, found


def test_stored_paths_are_right_on_the_cpu():
    kernel = rows_rng.paths_f32(np.exp2)
    for columns in (252, 251, 250, 249):  # what is left after steps of four
        out = np.full((columns, 3000), np.nan, np.float32)
        kernel[rows_rng.rng.launch(3000)](*rows_rng.path_arguments(out, 5))
        right, found = rows_rng.check_paths(out, 5)
        assert right, found
    out[3, 17] *= np.float32(1.001)
    assert not rows_rng.check_paths(out, 5)[0]
    out[3, 17] = np.nan
    assert not rows_rng.check_paths(out, 5)[0]


def test_words_are_right_on_the_cpu():
    out, seed = np.zeros(100, np.uint32), SESSION.seed()
    rows_rng.words[rows_rng.rng.launch(100)](out, np.int32(9), np.uint64(seed))
    assert (out == np.bitwise_xor.reduce(asian.philox(seed, 100, 9), axis=(1, 2))).all()


@pytest.mark.parametrize(("state", "folders"), [("warm", 1), ("cold", 4)])
def test_start_times_are_medians_taken_in_turn(monkeypatch, state, folders):
    ran, seen = [], set()

    def first_line(command, env=None):
        ran.append(Path(command[1]).stem)
        seen.add(env["DEVMATH_CACHE_DIR"] if env else None)
        if ran[-1] == "nvmath_start":
            raise rows_start.ProgramError("nvmath_start.py: no such module")
        return float(len(ran)), {"value": 0.5, "check": {"max_rel_err": 1e-7}}

    monkeypatch.setattr(rows_start, "first_line", first_line)
    monkeypatch.setattr(rows_start, "nvmath_environment", lambda: {"DEVMATH_CACHE_DIR": None})
    got = rows_start.measure_start("fft", state, run.Session(peers.Peers(True)))
    rounds = rows_start.ROUNDS[state]
    assert ran == ["start_devmath", *["start_devmath", "numba_start"] * rounds, "nvmath_start"] and len(seen - {None}) == folders
    assert got.value == 2.0 + rounds - 1 and got.baselines == {"numba_cuda": 3.0 + rounds - 1}
    assert got.note == "nvmath: nvmath_start.py: no such module"


def test_program_without_a_result_is_an_error(tmp_path):
    with pytest.raises(rows_start.ProgramError, match="program.py: wrong result: 3"):
        rows_start.first_line(_script(tmp_path, "raise SystemExit('wrong result: 3')"))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["fft", "rng"])
def test_start_script_is_timed_from_the_spawn(what, tmp_path):
    seconds, line = rows_start.devmath_start(what, str(tmp_path), "--cpu")
    assert line["name"] == f"start.{what}:devmath" and seconds > 0.5


# -- records -------------------------------------------------------------------


def _entry(got, peer_outcomes=(), copy=None, name="cpu.conv.c64.512"):
    return record.entry(name, Row("s", lambda session: got), got, list(peer_outcomes), copy, STAMP)


def test_entry_takes_its_own_baselines():
    outcome = peers.Outcome(
        {
            "cpu.conv.c64.512:scipy": {"value": 2.0, "check": {"workers": 3}},
            "cpu.gbm_asian.f32:numpy": {"value": 9.0, "check": {}},
        },
        "one.py: a note",
    )
    e = _entry(Measured(1.0, {"rel_l2": 1e-7}, "mine"), [outcome])
    assert e["baselines"] == {"scipy": 2.0} and e["baseline_checks"] == {"scipy": {"workers": 3}}
    assert e["met"] is True and e["target"] == "at most 0.8 x scipy" and e["note"] == "mine; one.py: a note"
    assert {"date", "commit"} <= set(e)


def test_entry_without_its_baseline_is_not_met():
    e = _entry(Measured(1e-9, {}))
    assert e["met"] is False and "not judged against scipy" in e["note"]


def test_wrong_result_has_no_value():
    e = _entry(Measured(None, {"rel_l2": 0.5}), [peers.Outcome({"cpu.conv.c64.512:scipy": {"value": 2.0, "check": {}}})])
    assert e["value"] is None and e["met"] is False and "wrong" in e["note"]


def test_row_whose_code_fails_says_so(monkeypatch, capsys):
    def fail(session):
        raise RuntimeError("no such thing\nand more")

    monkeypatch.setitem(run.ROWS, "cpu.conv.c64.512", Row("s", fail, gpu=False))
    e = run.measure("cpu.conv.c64.512", SESSION, STAMP)
    assert e["value"] is None and "RuntimeError: no such thing" in e["note"] and "\n" not in e["note"]


def test_fraction_of_copy_is_that_of_the_run():
    got = Measured(950.0, {})
    e = record.entry("fft.c2c.c64.128", Row("GB/s", lambda s: got), got, [], 1000.0, STAMP)
    assert e["fraction_of_copy"] == 0.95 and e["copy_GBps"] == 1000.0 and e["met"]


def test_merging_replaces_by_name_and_keeps_the_rest(tmp_path):
    first = record.merge(record.load(tmp_path / "none.json"), {"device": "A", "copy_GBps": 1.0}, [{"name": "rng.philox_bits", "value": 1}])
    second = record.merge(first, {"device": "B", "copy_GBps": None}, [{"name": "fft.c2c.c64.128", "value": 2}])
    third = record.merge(second, {"device": "B"}, [{"name": "rng.philox_bits", "value": 3}])
    assert [(r["name"], r["value"]) for r in third["rows"]] == [("fft.c2c.c64.128", 2), ("rng.philox_bits", 3)]
    assert third["device"] == "B" and third["copy_GBps"] == 1.0
    path = tmp_path / "new" / "record.json"
    record.save(path, third)
    record.save(path, {**third, "worst": float("inf")})
    assert record.load(path) == {**third, "worst": "Infinity"} and [p.name for p in path.parent.iterdir()] == ["record.json"]


def test_limit_leaves_rows_out(tiny_cpu_rows, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(timing, "device_name", lambda: None)
    assert run.main(["--only", "cpu", "--no-baselines", "--limit", "0", "--out", str(tmp_path / "r.json")]) == 0
    assert "left out cpu.conv.c64.512, cpu.gbm_asian.f32" in capsys.readouterr().out and not (tmp_path / "r.json").exists()


def test_the_h200_record_is_for_an_h200(monkeypatch):
    monkeypatch.setattr(timing, "device_name", lambda: "NVIDIA A100")
    with pytest.raises(SystemExit, match="--record is for an H200"):
        run.main(["--only", "cpu", "--record"])


# -- baselines' programs -------------------------------------------------------


def _script(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(text)
    return (sys.executable, str(path))


_LINE = """print('noise'); print('{"name": "row:peer", "value": 1.5, "unit": "s", "check": {}}', flush=True)\n"""


def test_lines_before_a_failure_count(tmp_path):
    got = peers.run(_script(tmp_path, _LINE + "raise ValueError('what happened')"))
    assert got.lines["row:peer"]["value"] == 1.5 and got.note == "program.py: ValueError: what happened"


def test_missing_program_leaves_a_note():
    assert peers.run(("/nowhere/program",)) == peers.Outcome({}, "program: No such file or directory")


def test_slow_program_is_stopped(tmp_path):
    got = peers.run(_script(tmp_path, _LINE + "import time; time.sleep(60)"), timeout=2)
    assert got.note == "program.py: stopped after 2 s" and "row:peer" in got.lines


def test_missing_tools_leave_a_note(monkeypatch):
    monkeypatch.delenv("DEVMATH_BASELINE_SITE", raising=False)
    monkeypatch.setattr(peers, "_nvcc", lambda: None)
    p = peers.Peers()
    assert "DEVMATH_BASELINE_SITE" in p.python("nvmath_rng.py").note
    assert "nvcc was not found" in p.cpp(True).note


def test_compiler_that_fails_leaves_a_note(monkeypatch):
    def fail(fast_math):
        raise subprocess.CalledProcessError(1, "nvcc", "", "mc.cu(3): error: something\nmore")

    monkeypatch.setattr(peers, "_nvcc", lambda: "/usr/bin/nvcc")
    monkeypatch.setattr(peers, "build_cpp", fail)
    assert peers.Peers().cpp(False).note == "mc.cu: mc.cu(3): error: something"


def test_nvmath_has_its_folder_first(monkeypatch, tmp_path):
    monkeypatch.setenv("DEVMATH_BASELINE_SITE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/other")
    assert peers.nvmath_environment()["PYTHONPATH"] == f"{tmp_path}:/other"


def test_program_runs_once_for_all_its_rows(monkeypatch):
    ran = []
    monkeypatch.setattr(peers, "run", lambda command, env, timeout: ran.append(command) or peers.Outcome({}))
    p = peers.Peers()
    assert [p.python("cpu_baselines.py") for _ in range(3)] == [peers.Outcome({})] * 3 and len(ran) == 1


# -- the GPU rows' kernels -----------------------------------------------------


class _DeviceArray:
    def __init__(self, shape, dtype):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": np.dtype(dtype).str, "data": (4096, False), "version": 3, "stream": 1}


def _launch_arguments(name):
    if name.startswith("fft."):
        kind, dtype = name.split(".")[1:3]
        value = {"c64": np.complex64, "c128": np.complex128, "f32": np.float32}[dtype]
        if kind == "r2c":
            return _DeviceArray((9, 512), value), _DeviceArray((9, 257), np.complex64)
        x, h = _DeviceArray((9, 512), value), _DeviceArray((512,), value)
        return (x, h, x, rows_fft.PRECISION[dtype](1)) if kind == "conv" else (x, x)
    return {
        "mc.gbm_asian.f32": lambda: rows_rng.asian_arguments(_DeviceArray((9,), np.float32), np.float32, 1.0, 1),
        "mc.gbm_asian.f64": lambda: rows_rng.asian_arguments(_DeviceArray((9,), np.float64), np.float64, 1.0, 1),
        "mc.gbm_paths.f32": lambda: rows_rng.path_arguments(_DeviceArray((9, 9), np.float32), 1),
        "rng.philox_bits": lambda: (_DeviceArray((9,), np.uint32), np.int32(1), np.uint64(1)),
        "launch.overhead": lambda: (_DeviceArray((9,), np.float32), _DeviceArray((9,), np.float32), 32),
        "size.cubin.fft512": lambda: (_DeviceArray((9, 512), np.complex64),) * 2,
    }[name]()


@pytest.mark.parametrize("name", GPU_KERNELS)
def test_kernels_are_compiled_for_the_types_they_are_launched_with(name):
    ((_, signature),) = run.ROWS[name].kernels()
    assert tuple(look_at(a).type for a in _launch_arguments(name)) == signature


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if "fft" in n else ()) for n in GPU_KERNELS])
def test_kernels_compile(name):
    _, size, message = run.compile_row(name, "sm_90a")
    assert size > 0 and not message


@pytest.mark.slow
def test_size_of_a_linked_kernel():
    got = rows_start.measure_size(run.Session(peers.Peers(True)))
    assert 1000 < got.value < 65_536 and got.value <= got.baselines["link_without_removal"]


# A few of each kind: each FFT costs a cold compilation.
_FEW = ["fft.conv.c64.128", "fft.conv.c128.512", "fft.c2c.c64.128", "fft.r2c.f32.256", *(n for n in rows_rng.ROWS if run.ROWS[n].gpu)]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr("_common.WARM_UP", 0.01)
    monkeypatch.setattr(rows_fft, "GIB", 1 << 21)
    for constant in ("PATHS", "STORED_PATHS", "WORD_THREADS"):
        monkeypatch.setattr(rows_rng, constant, 1 << 13)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", [*_FEW, "launch.overhead"])
def test_gpu_rows_are_right(name, small):
    pytest.importorskip("cupy")
    assert arch.current() is not None
    assert run.ROWS[name].measure(SESSION).value is not None


@pytest.fixture
def numpy_for_cupy(monkeypatch):
    """CuPy's names on NumPy arrays, so that the rows' code runs where there is no GPU."""

    class Event:
        def record(self):
            self.time = time.perf_counter()

        def synchronize(self):
            pass

    cupy = types.ModuleType("cupy")
    cupy.__getattr__ = lambda name: getattr(np, name)
    cupy.asnumpy = np.array  # a copy
    cupy.cuda = types.SimpleNamespace(Event=Event, get_elapsed_time=lambda a, b: 1000 * (b.time - a.time))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(rows_rng, "libdevice", types.SimpleNamespace(exp2f=np.exp2))


@pytest.mark.slow
@pytest.mark.parametrize("name", _FEW)
def test_gpu_rows_are_right_on_the_cpu_target(name, small, numpy_for_cupy):
    got = run.ROWS[name].measure(SESSION)
    assert got.value is not None and got.value > 0, got


def test_copy_rate_of_a_run(small, numpy_for_cupy, monkeypatch):
    monkeypatch.setattr(timing, "GIB", 1 << 20)
    monkeypatch.setattr(timing, "free", lambda: None)
    assert list(run.copy_rate(peers.Peers(False))) == ["cupy"]
