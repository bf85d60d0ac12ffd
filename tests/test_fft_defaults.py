"""The measured defaults of FFT plans: the packaged file is of use, and what happens where nothing was measured."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from support import ROOT

from devmath import arch, fingerprint
from devmath.fft import FFT, defaults
from devmath.fft.stockham import Transform

CONTENT = defaults.read(defaults.PATH.read_text(encoding="utf-8"))
ROWS = [(run, row) for run in CONTENT["runs"] for row in run["rows"]]


def fake(monkeypatch, *runs):
    """Measured tables of (arch, rows)."""
    content = {"schema": 1, "runs": [{"arch": a, "rows": rows} for a, rows in runs]}
    monkeypatch.setattr(defaults, "_measured", lambda: defaults.tables(defaults.read(json.dumps(content))))


def row(default="devmath", kind="c2c", precision="float32", size=512, **knobs):
    return {"kind": kind, "precision": precision, "size": size, "default": default, **knobs}


def got(plan, target):
    t = plan.traits(target)
    return t.implementation, t.elements_per_thread, t.ffts_per_block


# -- the file ----------------------------------------------------------------------------------------------------------


def test_every_run_says_where_it_comes_from():
    for run in CONTENT["runs"]:
        assert all(isinstance(run[k], str) and run[k] for k in ("gpu", "arch", "measured"))
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"])
        assert run["versions"]["libmathdx"]
    assert len({(r["arch"], x["kind"], x["precision"], x["size"]) for r, x in ROWS}) == len(ROWS), "a row stands twice"


@pytest.mark.parametrize(("run", "row"), ROWS, ids=[f"{x['kind']}-{x['precision']}-{x['size']}" for _, x in ROWS])
def test_a_row_is_what_its_plan_has(run, row):
    """On the architecture where it was measured, for both implementations and, of a plan that names none, the row's default."""
    target = arch.native(arch.parse(run["arch"]).cc)
    plan = FFT(row["size"], precision=row["precision"], fft_type="c2c" if row["kind"] == "c2c" else "r2c")
    for name in defaults.IMPLEMENTATIONS:
        if name in row:
            assert got(plan.replace(implementation=name), target) == (name, *row[name])
    assert got(plan, target) == (row["default"], *row[row["default"]])
    assert plan.inverse().traits(target).block_dim == plan.traits(target).block_dim


def test_the_text_is_read_as_it_was_written():
    assert defaults.write(CONTENT) == defaults.PATH.read_text(encoding="utf-8")


WITHOUT_KNOBS = '{"schema": 1, "runs": [{"arch": "sm_90", "rows": [{"default": "devmath"}]}]}'


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": 2, "runs": []}', WITHOUT_KNOBS])
def test_another_form_is_refused(text):
    with pytest.raises(ValueError, match="schema|one of its implementations"):
        defaults.read(text)


def test_kernels_are_compiled_anew_when_the_defaults_change(tmp_path, monkeypatch):
    """The file takes part in the digest of devmath's sources."""
    package = tmp_path / "devmath"
    shutil.copytree(ROOT / "devmath", package)
    monkeypatch.setattr(fingerprint, "__file__", str(package / "fingerprint.py"))
    digest = fingerprint.package_digest.__wrapped__
    before = digest()
    path = package / "fft" / "defaults.json"
    path.write_text(path.read_text().replace("[16, 1]", "[8, 1]", 1))
    assert digest() != before


def test_the_file_is_in_the_wheel(tmp_path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    listed = subprocess.run([sys.executable, "-m", "zipfile", "-l", *map(str, tmp_path.glob("*.whl"))], check=True, capture_output=True, text=True)
    assert "devmath/fft/defaults.json" in listed.stdout


# -- the rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "target", "nearest"),
    [
        ([(9, 0)], "sm_75", (9, 0)),
        ([(8, 0), (9, 0)], "sm_90a", (9, 0)),
        ([(8, 0), (9, 0)], "sm_100a", (9, 0)),
        ([(8, 9), (9, 0), (10, 0)], "sm_120", (8, 9)),  # its blocks have as much shared memory
        ([(8, 0), (10, 0)], "sm_90a", (8, 0)),
        ([(8, 0), (9, 0)], "sm_87", (8, 0)),
        ([(8, 6), (9, 0)], "sm_80", (9, 0)),
        ([(9, 0), (11, 0)], "sm_100", (9, 0)),
        ([], "sm_90", None),
    ],
)
def test_the_nearest_architecture(measured, target, nearest):
    assert defaults.nearest(measured, arch.parse(target)) == nearest
    assert defaults.nearest(measured[::-1], arch.parse(target)) == nearest


def test_an_architecture_has_its_own_rows_first(monkeypatch):
    fake(monkeypatch, ("sm_90", [row(devmath=[8, 2])]), ("sm_80", [row(devmath=[4, 4])]))
    assert got(FFT(512), "sm_90a") == ("devmath", 8, 2)
    assert got(FFT(512), "sm_80") == ("devmath", 4, 4)
    assert got(FFT(512), "sm_86") == ("devmath", 4, 4)


def test_a_later_run_replaces_rows(monkeypatch):
    fake(monkeypatch, ("sm_90", [row(devmath=[8, 2]), row(size=256, devmath=[8, 4])]), ("sm_90", [row(devmath=[16, 2])]))
    assert got(FFT(512), "sm_90a") == ("devmath", 16, 2)
    assert got(FFT(256), "sm_90a") == ("devmath", 8, 4)


def test_what_does_not_fit_is_left_to_the_rule(monkeypatch):
    fake(monkeypatch, ("sm_90", [row(size=2048, devmath=[8, 4], cufftdx=[8, 8], default="devmath")]))
    assert got(FFT(2048), "sm_90a") == ("devmath", 8, 4)
    rule = Transform(2048, "float32", False, False).knobs(None, None, arch.parse("sm_75"))
    assert Transform(2048, "float32", False, False).shared_bytes(8, 4) > arch.parse("sm_75").shared_limit
    assert rule[1] == 1
    assert got(FFT(2048), "sm_75") == ("devmath", *rule)
    assert got(FFT(2048, implementation="cufftdx"), "sm_75")[2] < 8


def test_the_faster_implementation_is_taken(monkeypatch):
    rows = [row("cufftdx", cufftdx=[16, 4], devmath=[8, 2]), row("cufftdx", kind="real", size=1000, cufftdx=[10, 2])]
    fake(monkeypatch, ("sm_90", rows))
    assert got(FFT(512), "sm_90a") == ("cufftdx", 16, 4)
    assert got(FFT(512, implementation="devmath"), "sm_90a") == ("devmath", 8, 2)
    assert got(FFT(512, elements_per_thread=8), "sm_90a")[:2] == ("cufftdx", 8)
    assert got(FFT(256), "sm_90a")[0] == "cufftdx", "not measured"
    for fft_type in ("r2c", "c2r"):
        assert got(FFT(1000, fft_type=fft_type), "sm_90a") == ("cufftdx", 10, 2)


def test_rows_are_of_plans_with_nothing_else_said(monkeypatch):
    asked = FFT(512, fft_type="r2c", implementation="cufftdx")
    others = [
        asked.replace(real_mode="folded"), asked.replace(complex_layout="full"), asked.replace(transposition="by_complex"),
        asked.replace(thread_layout="transposed"), asked.replace(elements_per_thread=8), asked.replace(ffts_per_block=3),
    ]  # fmt: skip
    fake(monkeypatch)
    without = [got(p, "sm_90a") for p in others]
    fake(monkeypatch, ("sm_90", [row("cufftdx", kind="real", cufftdx=[16, 4])]))
    fresh = [p.replace(arch="sm_90a") for p in others]
    assert [got(p, "sm_90a") for p in fresh] == without
    assert got(asked.replace(arch="sm_90a"), "sm_90a") == ("cufftdx", 16, 4)


def test_half_precision_has_rows(monkeypatch):
    fake(monkeypatch, ("sm_90", [row("cufftdx", precision="float16", cufftdx=[8, 6])]))
    assert got(FFT(512, precision=np.float16), "sm_90a") == ("cufftdx", 8, 6)
