"""Tuned plans and the store of what was measured, on a GPU that is none (and once, in one test, on a real one)."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
from support import host
from tuning_support import FakeGpu, FakeWorkers, fastest, shared_kernels  # noqa: F401

import devmath as dm
from devmath import arch, cli, tuning
from devmath.errors import TuningError
from devmath.fft import FFT, tune
from devmath.targets.cuda import available
from devmath.tuning import bench, measure, progress, search, store, workers

if not available():
    pytest.skip("candidates are those of a GPU, from libmathdx", allow_module_level=True)

SM90 = arch.parse("sm_90a")
BEST = {"implementation": "devmath", "real_mode": None, "elements_per_thread": 4, "ffts_per_block": 8}
without_gpu = pytest.mark.skipif(arch.device_count() > 0, reason="for a machine without a GPU")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, shared_kernels):  # noqa: F811
    """A store of the test's own, little data, and nothing to compile."""
    monkeypatch.setenv("DEVMATH_TUNING_DIR", str(tmp_path / "made" / "tuning"))
    monkeypatch.setattr(bench, "DATA", 1 << 16)
    monkeypatch.setattr(search, "Workers", FakeWorkers())
    return tmp_path / "made" / "tuning"


@pytest.fixture
def pool(monkeypatch):
    found = FakeWorkers()
    monkeypatch.setattr(search, "Workers", found)
    return found


def only(folder):
    (path,) = folder.iterdir()
    return path


def entry(**changes):
    """A sound entry."""
    key = {
        "plan": json.loads(FFT(64).to_json()), "pattern": "transform", "batch": 64, "arch": "sm_90a", "gpu": "G", "driver": "CUDA 13.0",
        "libmathdx": "1", "devmath": "1",
    }  # fmt: skip
    key |= changes.pop("key", {})
    return {"schema": 1, "key": key, "knobs": BEST, "ms": 1.0, "default_ms": 2.0, "date": store.today(), "trials": [], **changes}


# -- tuned plans -------------------------------------------------------------------------------------------------------


def test_the_fastest_knobs_are_taken_and_kept(folder, pool):
    device = FakeGpu(fastest(**BEST))
    plan = FFT(64)
    tuned = plan.tuned(batch=1000, measure=device)
    assert tuned == plan.replace(**BEST)
    assert [p for p, *_ in pool.jobs][0] == plan and len(pool.jobs) > 10
    found = json.loads(only(folder).read_text())
    assert (found["ms"], found["default_ms"], found["batch"], found["key"]["batch"]) == (1.0, 2.0, 1000, 1024)
    assert (found["key"]["gpu"], found["key"]["driver"], found["key"]["arch"]) == ("Fake GPU", "CUDA 13.0", "sm_90a")
    assert len(found["trials"]) == len(pool.jobs) and all("ms" in t for t in found["trials"])
    # The second time, it is known; also in the next size of the batch that has the same power of two, and for the inverse.
    silent = FakeGpu(None)
    assert plan.tuned(batch=1024, measure=silent) == tuned
    assert plan.inverse().tuned(batch=513, measure=silent) == tuned.inverse()
    assert silent.timed == []
    assert plan.tuned(batch=1025, measure=FakeGpu(fastest(**{**BEST, "elements_per_thread": 16}))).fields["elements_per_thread"] == 16
    assert len(list(folder.iterdir())) == 2


def test_a_plain_plan_does_not_read_the_store(monkeypatch):
    FFT(64).tuned(batch=1000, measure=FakeGpu(fastest(**BEST)))
    monkeypatch.setattr(store, "load", None)
    monkeypatch.setattr(store, "entries", None)
    assert FFT(64).traits("sm_90a").elements_per_thread != BEST["elements_per_thread"]


@pytest.mark.parametrize("change", [{"name": "Other GPU"}, {"driver": "CUDA 13.1"}, {"target": "sm_80"}], ids=lambda c: next(iter(c)))
def test_another_device_measures_anew(change):
    FFT(64).tuned(batch=1000, measure=FakeGpu(fastest(**BEST)))
    other = FakeGpu(fastest(**BEST), **change)
    FFT(64).tuned(batch=1000, measure=other)
    assert other.timed


def test_other_versions_and_other_patterns_measure_anew(monkeypatch):
    device = FakeGpu(fastest(**BEST))

    def measured(**asked):
        device.timed.clear()
        FFT(64).tuned(**{"batch": 1000, "measure": device, **asked})
        return bool(device.timed)

    assert measured() and not measured()
    assert measured(pattern="transform") and not measured(pattern="transform")
    assert measured(again=True)
    monkeypatch.setattr(search.versions, "libmathdx", lambda: "9.9")
    assert measured() and not measured()
    monkeypatch.setattr(store, "code_version", lambda: "9.9")
    assert measured() and not measured()


@pytest.mark.parametrize(("gain", "kept"), [(1.005, True), (1.015, False)])
def test_a_gain_of_less_than_a_percent_keeps_the_default(gain, kept, folder):
    time = fastest(**BEST)
    tuned = FFT(64).tuned(batch=1000, measure=FakeGpu(lambda t: 1 / gain if time(t) == 1.0 else 1.0))
    assert (tuned == FFT(64)) == kept
    assert (json.loads(only(folder).read_text())["knobs"] is None) == kept
    assert FFT(64).tuned(batch=1000, measure=FakeGpu(None)) == tuned


def test_what_a_plan_names_stays():
    plan = FFT(64, implementation="cufftdx", elements_per_thread=8)
    tuned = plan.tuned(batch=1000, measure=FakeGpu(lambda t: 1.0 / (t.plan.fields["ffts_per_block"] or 1)))
    fields = tuned.fields
    assert (fields["implementation"], fields["elements_per_thread"]) == ("cufftdx", 8)
    assert fields["ffts_per_block"] == max(f for e, f in plan.valid_knobs("sm_90a") if e == 8)
    assert FFT(64).tuned(batch=1000, measure=FakeGpu(fastest(**BEST))) == FFT(64, **BEST), "another question"


@pytest.mark.parametrize("fft_type", ["r2c", "c2r"])
def test_both_directions_of_real_transforms_have_the_same_knobs(fft_type):
    plan = FFT(64, fft_type=fft_type)
    tuned = plan.tuned(batch=1000, measure=FakeGpu(fastest(implementation="cufftdx", elements_per_thread=16)))
    assert (tuned.fft_type, tuned.fields["real_mode"], tuned.fields["elements_per_thread"]) == (fft_type, "folded", 16)
    assert plan.inverse().tuned(batch=1000, measure=FakeGpu(None)) == tuned.inverse()
    assert tuned.traits("sm_90a").block_dim == tuned.inverse().traits("sm_90a").block_dim
    assert plan.tuned(batch=1000, pattern="transform", measure=FakeGpu(fastest(implementation="cufftdx"))).fft_type == fft_type


@pytest.mark.parametrize("plan", [FFT(16, execution="thread"), FFT(1)], ids=["thread", "one point"])
def test_a_plan_without_knobs_is_what_it_was(plan, folder):
    assert plan.tuned(measure=FakeGpu(None)) is plan
    assert not folder.exists()


def test_a_candidate_that_cannot_be_compiled_is_dropped_with_its_reason(monkeypatch, folder):
    refuse = FakeWorkers(lambda p: "CodegenError: no such thing" if p.fields["implementation"] == "cufftdx" else "")
    monkeypatch.setattr(search, "Workers", refuse)
    device = FakeGpu(fastest(implementation="cufftdx"))
    assert FFT(64).tuned(batch=1000, measure=device) == FFT(64)
    trials = json.loads(only(folder).read_text())["trials"]
    assert {t.get("dropped") for t in trials if t["knobs"]["implementation"] == "cufftdx"} == {"CodegenError: no such thing"}
    assert not any(t.plan.fields["implementation"] == "cufftdx" for t in device.timed)


def test_a_candidate_whose_result_is_wrong_is_dropped_with_its_reason(monkeypatch, folder):
    """The fastest one writes rows of its neighbours."""
    right = bench.Bench.trial

    def trial(self, plan, linked):
        get = self.device.get
        if plan.fields["elements_per_thread"] == 4:
            monkeypatch.setattr(self.device, "get", lambda a: np.roll(get(a), 1, axis=0))
        try:
            return right(self, plan, linked)
        finally:
            monkeypatch.setattr(self.device, "get", get)

    monkeypatch.setattr(bench.Bench, "trial", trial)
    tuned = FFT(64).tuned(batch=1000, measure=FakeGpu(lambda t: t.plan.fields["elements_per_thread"] or 9.0))
    assert tuned.fields["elements_per_thread"] == 8
    dropped = [t for t in json.loads(only(folder).read_text())["trials"] if "dropped" in t]
    assert dropped and all(t["knobs"]["elements_per_thread"] == 4 and t["dropped"].startswith("wrong result: relative error") for t in dropped)


def test_where_nothing_works_it_says_why(monkeypatch, folder):
    monkeypatch.setattr(search, "Workers", FakeWorkers(lambda p: "CodegenError: no compiler"))
    with pytest.raises(TuningError, match=r"^FFT\(64\): no candidate works on Fake GPU: CodegenError: no compiler$"):
        FFT(64).tuned(measure=FakeGpu(None))
    assert not folder.exists()


def test_bad_arguments_are_told():
    device = FakeGpu(None)
    choices = r"^pattern must be one of 'convolution', 'transform', got 'convolve' \(did you mean 'convolution'\?\); or it is"
    with pytest.raises(ValueError, match=choices):
        FFT(64).tuned(pattern="convolve", measure=device)
    for batch in (0, 1.5, True):
        with pytest.raises(ValueError, match="batch must be an integer of at least 1, got"):
            FFT(64).tuned(batch=batch, measure=device)
    with pytest.raises(TuningError, match=r"FFT\(64\) was made for sm_80 and the device at hand is sm_90a"):
        FFT(64, arch="sm_80").tuned(measure=device)
    with pytest.raises(TuningError, match="half precision with thread_layout='transposed' is tuned with a kernel of your own"):
        FFT(64, precision=np.float16, thread_layout="transposed").tuned(measure=device)


@pytest.mark.parametrize(
    "plan",
    [
        FFT(12, fft_type="r2c", complex_layout="full"), FFT(16, np.float64, "r2c", complex_layout="packed"), FFT(64, api="shared"),
        FFT(64, thread_layout="transposed"), FFT(64, np.float16), FFT(64, np.float16, "r2c"), FFT(60, fft_type="c2r"),
    ],
    ids=["full", "packed", "shared", "transposed", "half", "half real", "c2r"],
)  # fmt: skip
@pytest.mark.parametrize("pattern", tune.PATTERNS)
def test_the_patterns_of_all_kinds_of_plans_are_right_and_checked(plan, pattern):
    plan = tune.common(plan, pattern)
    case = tune.Case(plan, pattern)
    arrays = case.checked_arrays(3)
    expected = case.expected(arrays)
    assert "not written" in case.why_wrong(arrays[-1], expected)
    case.kernel[plan.launch(len(arrays[0]))](*arrays)
    assert case.why_wrong(arrays[-1], expected) == ""
    arrays[-1][5, 0] += arrays[-1].dtype.type(100)
    assert case.why_wrong(arrays[-1], expected).startswith("wrong result: relative error")
    assert all(c.traits("sm_90a").block_dim == c.inverse().traits("sm_90a").block_dim for c in tune.candidates(plan, SM90))


# -- a kernel of one's own ---------------------------------------------------------------------------------------------


def scaled(factor, x, y, launch=True):
    """A pattern: the transform times a factor, in place of the row before it."""

    def pattern(plan):
        @dm.kernel
        def scale(x, y):
            r, s, b = plan.registers(), plan.scratch(), plan.batch()
            if b < x.shape[0]:
                plan.load(x[b], r)
            plan.execute(r, s)
            for i in range(plan.elements_per_thread):
                r[i] *= factor
            if b < x.shape[0]:
                plan.store(r, y[b])
                plan.store(r, x[b])

        return (scale, (x, y), plan.launch(len(x))) if launch else (scale, (x, y))

    return pattern


@pytest.fixture
def data(rng):
    x = (rng.standard_normal((5, 64)) + 1j * rng.standard_normal((5, 64))).astype(np.complex64)
    return x, np.zeros_like(x)


FEW = FFT(64, implementation="cufftdx", elements_per_thread=8)
FAST = {"ffts_per_block": 24}


def test_a_kernel_of_ones_own_decides(data, folder):
    x, y = data
    before = x.copy()
    device = FakeGpu(fastest(**FAST))
    tuned = FEW.tuned(pattern=scaled(np.float32(2), x, y), measure=device)
    assert tuned == FEW.replace(**FAST)
    assert np.array_equal(x, before) and not y.any(), "the arrays are as they were"
    assert json.loads(only(folder).read_text())["key"]["pattern"].startswith("scale:")
    assert FEW.tuned(pattern=scaled(np.float32(2), x, y), measure=FakeGpu(None)) == tuned, "it is known"
    other = FakeGpu(fastest())
    FEW.tuned(pattern=scaled(np.float32(3), x, y), measure=other)
    assert other.timed, "another kernel"
    with pytest.raises(TuningError, match=r"without the launch, tuned\(batch=\.\.\.\) says how many"):
        FEW.tuned(pattern=scaled(np.float32(2), x, y, launch=False), measure=device)
    FEW.tuned(batch=5, pattern=scaled(np.float32(2), x, y, launch=False), measure=device)


def test_a_kernel_of_ones_own_that_differs_is_dropped(data, folder):
    x, y = data

    def pattern(plan):
        return scaled(np.float32(1 if plan.fields["ffts_per_block"] == 24 else 2), x, y)(plan)

    assert FEW.tuned(pattern=pattern, measure=FakeGpu(fastest(**FAST))) == FEW
    (dropped,) = [t for t in json.loads(only(folder).read_text())["trials"] if "dropped" in t]
    assert dropped["knobs"]["ffts_per_block"] == 24
    assert dropped["dropped"] == "wrong result: array 0 differs from the default plan's by 0.5, the most is 0.0001"


def test_a_kernel_whose_code_cannot_be_told_is_measured_each_time(data, folder):
    x, y = data
    strange = {"factor": object()}

    def pattern(plan):
        kernel, *rest = scaled(np.float32(2), x, y)(plan)
        kernel.py_func.__globals__  # noqa: B018
        kernel.py_func.__defaults__ = (strange,)
        return kernel, *rest

    for _ in range(2):
        device = FakeGpu(fastest(**FAST))
        assert FEW.tuned(pattern=pattern, measure=device) == FEW.replace(**FAST)
        assert device.timed
    assert not folder.exists()


@pytest.mark.parametrize("got", [None, (1, ()), (scaled,), ()], ids=["nothing", "no kernel", "one thing", "empty"])
def test_a_pattern_that_gives_something_else_is_refused(got):
    with pytest.raises(TuningError, match=r"a pattern returns \(kernel, args\) or \(kernel, args, launch\)"):
        FEW.tuned(pattern=lambda plan: got, measure=FakeGpu(None))


# -- without a GPU -----------------------------------------------------------------------------------------------------


@without_gpu
def test_without_a_gpu_it_says_what_to_do(data):
    with pytest.raises(TuningError, match=r"^FFT\(64\) cannot be tuned here: no CUDA device was found\. For what .* arch='sm_90a'$"):
        FFT(64).tuned()
    with pytest.raises(TuningError, match="nothing that was measured on sm_90a with these versions stands in .* `devmath tune import FILE`$"):
        FFT(64, arch="sm_90").tuned()
    with pytest.raises(TuningError, match="a pattern of your own is measured on one"):
        FFT(64, arch="sm_90").tuned(pattern=scaled(1, *data))
    with pytest.raises(TuningError, match="no CUDA device was found, and again=True is measured on one"):
        FFT(64, arch="sm_90").tuned(again=True)
    with pytest.raises(TuningError, match="measuring needs a CUDA device"):
        measure.Gpu()


@without_gpu
def test_without_a_gpu_the_store_answers_for_an_architecture_that_is_named():
    FFT(64).tuned(batch=1000, measure=FakeGpu(fastest(**BEST)))
    FFT(64).tuned(batch=1000, measure=FakeGpu(fastest(**BEST), target="sm_80"))
    assert FFT(64, arch="sm_90a").tuned(batch=1000) == FFT(64, arch="sm_90a", **BEST)
    assert FFT(64, arch="sm_90").tuned(batch=1000) == FFT(64, arch="sm_90", **BEST)
    with pytest.raises(TuningError):
        FFT(64, arch="sm_100").tuned(batch=1000)
    with pytest.raises(TuningError):
        FFT(64, arch="sm_90").tuned(batch=5000)


# -- comparing ---------------------------------------------------------------------------------------------------------


def test_candidates_take_turns_and_the_slow_ones_drop_out():
    times = {"default": 2.0, "fast": 1.0, "near": 1.1, "slow": 1.5}
    calls = []

    class Device:
        def milliseconds(self, launch, launches):
            calls.append((launch, launches))
            return times[launch]

    assert measure.compare(Device(), list(times)) == list(times.values())
    after = [launch for launch, launches in calls if launches == 4]
    assert after[:12] == list(times) * 3
    assert after[12:] == ["default", "fast", "near"] * 6, "the default is timed to the end"


def test_short_launches_are_timed_together():
    launched = []

    class Device:
        def milliseconds(self, launch, launches):
            launched.append(launches)
            return 0.02

    measure.compare(Device(), ["a"])
    assert launched[-9:] == [25] * 9


def test_a_line_says_how_far_it_is(capsys):
    report = progress.reporter(True, "FFT(64)")
    for done, total, text in ((1, 20, "compiled"), (20, 20, "checked"), (20, 20, "measured")):
        report(done, total, text)
    assert capsys.readouterr().err == "\rtuning FFT(64): compiled 1 of 20\rtuning FFT(64): checked 20 of 20\rtuning FFT(64): measured 20 of 20\n"
    progress.reporter(None, "FFT(64)")(1, 2, "compiled")
    progress.reporter(False, "FFT(64)")(1, 2, "compiled")
    assert capsys.readouterr().err == ""
    seen = []
    FFT(64).tuned(batch=1000, measure=FakeGpu(fastest(**BEST)), progress=lambda *a: seen.append(a))
    total = seen[-1][0]
    assert seen == [*((i, total, text) for text in ("compiled", "checked") for i in range(1, total + 1)), (total, total, "measured")] or (
        seen[-total - 1 :] == [*((i, total, "checked") for i in range(1, total + 1)), (total, total, "measured")]
    )


# -- the store ---------------------------------------------------------------------------------------------------------


def test_the_folder(monkeypatch, tmp_path):
    import platformdirs

    assert tuning.directory() == tmp_path / "made" / "tuning"
    monkeypatch.setenv("DEVMATH_TUNING_DIR", "~/t")
    assert str(tuning.directory()).endswith("/t") and "~" not in str(tuning.directory())
    monkeypatch.delenv("DEVMATH_TUNING_DIR")
    assert tuning.directory() == platformdirs.user_data_path("devmath") / "tuning"


DAMAGED = {
    "empty": "", "cut": json.dumps(entry())[:-20], "array": "[]", "no schema": "{}", "schema text": '{"schema": "1"}',
    "no key": json.dumps(entry() | {"key": {}}), "other plan": json.dumps(entry(key={"plan": {"plan": "FFT", "size": -1}})),
    "no plan": json.dumps(entry(key={"plan": {"plan": "Nothing"}})), "bad knobs": json.dumps(entry(knobs={"elements_per_thread": 3})),
    "unknown knob": json.dumps(entry(knobs={"speed": 3})), "knobs text": json.dumps(entry(knobs="fast")), "no time": json.dumps(entry(ms=None)),
    "no trials": json.dumps(entry(trials=None)), "other key": json.dumps(entry(key={"gpu": "Other"})), "deep": "[" * 100000,
}  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_entry_is_a_warning_and_measured_again(text, folder):
    FFT(64).tuned(batch=1000, measure=FakeGpu(fastest(**BEST)))
    path = only(folder)
    path.write_text(text)
    device = FakeGpu(fastest(**BEST))
    with pytest.warns(RuntimeWarning, match=rf"{path.name} is damaged and ignored \(.*\); `devmath tune clear` removes it"):
        assert FFT(64).tuned(batch=1000, measure=device) == FFT(64, **BEST)
    assert device.timed
    assert [e["knobs"] for e in tuning.entries()] == [BEST]


def test_a_newer_schema_is_refused(folder, tmp_path):
    FFT(64).tuned(batch=1000, measure=FakeGpu(fastest(**BEST)))
    path = only(folder)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2}))
    words = r"it was written by a newer devmath \(schema 2; this one reads up to 1\): upgrade devmath"
    with pytest.raises(TuningError, match=rf"{path.name}: {words}, or name another folder in DEVMATH_TUNING_DIR"):
        FFT(64).tuned(batch=1000, measure=FakeGpu(fastest(**BEST)))
    with pytest.raises(TuningError, match=words):
        tuning.entries()
    for content in ({"schema": 2, "what": 1}, {"schema": 1, "entries": [entry(schema=2)]}):
        (tmp_path / "f.json").write_text(json.dumps(content))
        with pytest.raises(TuningError, match=rf"f.json cannot be imported: {words}"):
            tuning.import_(tmp_path / "f.json")
    assert tuning.clear() == 1 and tuning.entries() == []


def test_exported_and_imported(folder, tmp_path, monkeypatch):
    for plan in (FFT(64), FFT(64, fft_type="r2c")):
        plan.tuned(batch=1000, measure=FakeGpu(fastest(implementation="devmath", elements_per_thread=4)))
    found = tuning.entries()
    assert tuning.export(tmp_path / "f.json") == 2
    monkeypatch.setenv("DEVMATH_TUNING_DIR", str(tmp_path / "other"))
    assert tuning.entries() == [] and tuning.clear() == 0
    assert tuning.import_(tmp_path / "f.json") == 2
    assert tuning.entries() == found
    assert FFT(64).tuned(batch=1000, measure=FakeGpu(None)).fields["elements_per_thread"] == 4
    assert tuning.import_(tmp_path / "f.json") == 0, "they are there"
    newer = found[0] | {"date": "2100-01-01T00:00:00+00:00", "knobs": None}
    store.save(newer)
    assert tuning.import_(tmp_path / "f.json") == 0, "and newer"
    assert newer in tuning.entries()
    assert tuning.clear() == 2


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"schema": 1}', json.dumps({"schema": 1, "entries": [entry(), {}]})])
def test_a_file_that_is_no_export_is_refused_and_nothing_kept(content, tmp_path, folder):
    path = tmp_path / "f.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TuningError, match="f.json cannot be (read|imported)"):
        tuning.import_(path)
    assert not folder.exists()


def test_a_disk_that_refuses_costs_the_next_process_alone(folder, monkeypatch):
    folder.parent.mkdir()
    folder.write_text("a file where the folder should be")
    with pytest.warns(RuntimeWarning, match="what was measured cannot be kept in"):
        assert FFT(64).tuned(batch=1000, measure=FakeGpu(fastest(**BEST))) == FFT(64, **BEST)
    assert tuning.entries() == []


def test_other_files_in_the_folder_stay(folder):
    folder.mkdir(parents=True)
    (folder / "notes.json").write_text("{")
    store.save(entry())
    assert len(tuning.entries()) == 1 and tuning.clear() == 1
    assert [p.name for p in folder.iterdir()] == ["notes.json"]


WRITER = """
import json, sys
from devmath.tuning import store
entry = json.loads(sys.argv[1])
for i in range(150):
    entry["ms"] = float(i)
    entry["trials"] = [{"knobs": {}, "ms": 1.0}] * (i * 20)
    assert store.save(entry)
    assert store.load(entry["key"]) is not None
"""


def test_processes_write_and_read_at_the_same_time(folder):
    """Whoever reads finds a whole entry."""
    one, other = entry(), entry(key={"gpu": "Other"})
    store.save(one)
    writers = [subprocess.Popen([sys.executable, "-W", "error", "-c", WRITER, json.dumps(e)]) for e in (one, one, other)]
    reads = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while any(w.poll() is None for w in writers):
            found = store.load(one["key"])
            assert found is not None and len(found["trials"]) in (0, 20 * found["ms"])
            reads += len(store.entries()) >= 1
    assert [w.returncode for w in writers] == [0, 0, 0] and reads
    assert len(list(folder.iterdir())) == 2, "no temporary file is left"


# -- devmath tune ------------------------------------------------------------------------------------------------------


def run(capsys, *words):
    status = cli.main(["tune", *words])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def gpu(monkeypatch):
    """A fake one for the command, which asks for the one there is."""
    monkeypatch.setattr(search._arch, "device_count", lambda: 1)
    monkeypatch.setattr(search, "Gpu", lambda: FakeGpu(fastest(**BEST)))


def test_the_command_measures_lists_exports_imports_and_clears(capsys, gpu, folder, tmp_path):
    line = "FFT(64), convolution, batch 1024, Fake GPU (sm_90a), "
    answer = ": implementation=devmath elements_per_thread=4 ffts_per_block=8, 2.000 x the default\n"
    status, out, err = run(capsys, "fft", "--size", "64", "--precision", "float32", "--batch", "1000")
    assert status == 0 and err == ""
    first, *_, last = out.splitlines(keepends=True)
    assert first == "1.0000 ms    implementation=devmath elements_per_thread=4 ffts_per_block=8\n"
    assert last.startswith(line) and last.endswith(answer)
    assert run(capsys, "fft", "--size", "64", "--batch", "1000") == (0, out, "")
    assert run(capsys, "list") == (0, f"{last}1 in {folder}\n", "")
    path = str(tmp_path / "f.json")
    assert run(capsys, "export", path) == (0, f"1 written to {path}\n", "")
    assert run(capsys, "clear") == (0, f"1 removed from {folder}\n", "")
    assert run(capsys, "import", path) == (0, f"1 taken over into {folder}\n", "")
    assert run(capsys, "list") == (0, f"{last}1 in {folder}\n", "")


def test_the_command_takes_every_kind_of_plan(capsys, gpu):
    status, out, _ = run(
        capsys, "fft", "--size", "64", "--precision", "float64", "--fft-type", "r2c", "--complex-layout", "packed", "--pattern", "transform",
        "--batch", "9", "--again",
    )  # fmt: skip
    assert status == 0
    assert "FFT(64, precision='float64', fft_type='r2c', complex_layout='packed'), transform, batch 16, Fake GPU" in out


def test_the_command_says_what_is_wrong_in_a_line(capsys, gpu, folder, tmp_path):
    for words, text in (
        (["fft", "--size", "-1"], "size must be"),
        (["fft", "--size", "64", "--batch", "0"], "batch must be"),
        (["import", str(tmp_path / "none")], "cannot be read"),
        (["export", str(tmp_path / "no" / "folder")], "No such file"),
    ):
        status, out, err = run(capsys, *words)
        assert (status, out) == (1, "") and err.startswith("devmath tune: ") and text in err and err.count("\n") == 1


@without_gpu
def test_the_command_without_a_gpu(capsys):
    status, out, err = run(capsys, "fft", "--size", "64")
    assert (status, out) == (1, "") and "no CUDA device was found" in err


# -- with nothing put in its place -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_candidates_are_compiled_by_workers(monkeypatch, folder):
    """For an architecture without its GPU; the kernels that come back are the ones that would be launched."""
    monkeypatch.setattr(search, "Workers", workers.Workers)
    adopted = []
    monkeypatch.setattr(dm.Kernel, "adopt", lambda self, types, linked: adopted.append((types, linked)))
    plan = FFT(64, implementation="devmath", elements_per_thread=16)
    tuned = plan.tuned(batch=1000, pattern="transform", measure=FakeGpu(fastest(ffts_per_block=32)))
    assert tuned.fields["ffts_per_block"] == 32
    assert len(adopted) == len(json.loads(only(folder).read_text())["trials"]) >= 3
    for types, linked in adopted:
        assert linked.arch == SM90 and linked.cubin[:4] == b"\x7fELF"
        assert types == tune.Case(plan, "transform").types


def test_a_worker_that_dies_is_a_reason(monkeypatch):
    monkeypatch.setattr(workers, "_CODE", "import sys; sys.stdin.readline(); sys.exit(3)")
    with workers.Workers(1) as pool:
        for _ in range(2):
            assert pool.submit(FFT(64), ["transform"], SM90).result(60).error == "the process that compiled it ended with code 3"
    monkeypatch.setattr(workers, "_CODE", "import sys; sys.exit(4)")
    with workers.Workers(1) as pool:
        assert pool.submit(FFT(64), ["transform"], SM90).result(60).error == "the process that compiled it ended with code 4"


def test_leaving_the_workers_ends_them(monkeypatch):
    monkeypatch.setattr(workers, "_CODE", "import time; time.sleep(600)")
    with workers.Workers(1) as pool:
        futures = [pool.submit(FFT(64), ["transform"], SM90) for _ in range(3)]
        while not pool._processes:
            pass
    assert futures[0].result(10).error == "stopped" and futures[2].cancelled()


@pytest.mark.gpu
@pytest.mark.parametrize("pattern", ["convolution", "transform"])
def test_tuning_on_the_gpu(pattern, monkeypatch, folder):
    monkeypatch.setattr(search, "Workers", workers.Workers)
    monkeypatch.setattr(bench, "DATA", 64 << 20)
    tuned = FFT(256).tuned(pattern=pattern)
    found = json.loads(only(folder).read_text())
    assert found["key"]["gpu"] and all("ms" in t for t in found["trials"]), [t for t in found["trials"] if "ms" not in t]
    assert 0 < found["ms"] <= found["default_ms"]
    assert FFT(256).tuned(pattern=pattern) == tuned


@pytest.mark.gpu
def test_a_kernel_of_ones_own_on_the_gpu(monkeypatch, folder):
    cp = pytest.importorskip("cupy")
    monkeypatch.setattr(search, "Workers", workers.Workers)
    x = cp.random.default_rng(1).standard_normal((20_000, 2 * 64), dtype=cp.float32).view(cp.complex64)
    y, before = cp.zeros_like(x), host(x)
    tuned = FFT(64, implementation="devmath").tuned(pattern=scaled(np.float32(0.5), x, y))
    assert np.array_equal(host(x), before) and not host(y).any()
    scaled(np.float32(0.5), x, y)(tuned)[0][tuned.launch(len(x))](x, y)
    want = 0.5 * np.fft.fft(before.astype(np.complex128))
    assert np.linalg.norm(host(y) - want) < 1e-6 * np.linalg.norm(want)
