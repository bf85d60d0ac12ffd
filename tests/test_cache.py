"""Laws of the disk cache: keys never collide, and a read is None or right, whatever other processes do."""

import enum
import hashlib
import itertools
import json
import os
import signal
import stat
import struct
import sys
import time
from pathlib import Path

import pytest
from cache_support import KEY, LOADER, META, OTHER, PAYLOAD, age, cache_folder, output, path_of, refuse, start  # noqa: F401
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from devmath import cache

# --- digest -----------------------------------------------------------------------------------------------------------

atoms = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4)
hashable = st.recursive(atoms, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(hashable, inner, max_size=3)
    ),
    max_leaves=8,
)


def meaning(value):
    """A second, independent canonical form, compared by Python's own equality."""
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, (tuple, list)):
        return type(value).__name__, tuple(map(meaning, value))
    if isinstance(value, dict):
        return "dict", tuple(sorted(((meaning(k), meaning(v)) for k, v in value.items()), key=repr))
    return type(value).__name__, value


@settings(max_examples=150)
@given(values, values)
def test_digests_are_equal_exactly_when_the_values_are(one, two):
    assert (cache.digest(one) == cache.digest(two)) == (meaning(one) == meaning(two))


@settings(max_examples=100)
@given(st.lists(st.text(max_size=3), max_size=4), st.lists(st.text(max_size=3), max_size=4))
def test_where_parts_are_cut_matters(one, two):
    assume(one != two)
    assert cache.digest(*one) != cache.digest(*two)
    assert cache.digest(one) != cache.digest(two)
    assert cache.digest(*[part.encode() for part in one]) != cache.digest(*[part.encode() for part in two])


@settings(max_examples=50)
@given(st.dictionaries(hashable, values, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_dict_order_does_not_matter(mapping, random):
    items = list(mapping.items())
    random.shuffle(items)
    assert cache.digest(dict(items)) == cache.digest(mapping)


def test_values_that_python_or_a_careless_encoding_confuses():
    nan = float("nan")
    other_nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    tricky = [
        None, True, 1, 1.0, "1", b"1", False, 0, 0.0, -0.0, "", b"", "None", "n", nan, other_nan, float("inf"), 5e-324,
        -1, 10**5000, -(10**5000), "é", "e\u0301", "é".encode(), "\ud800", "\0", (), [], {}, (None,), [None], ((),),
        ("ab", "c"), ("a", "bc"), ("abc",), ("ab", "c", ""), ["ab", "c"], (("ab",), "c"), ("ab", ("c",)), {"ab": "c"},
        {"a": "bc"}, (("ab", "c"),), {1: 2, 3: 4}, {1: 4, 3: 2}, {"1": 2, "3": 4}, {True: 2, 3: 4}, {1: {2: 3}},
        {1: 2, 3: (4, 5)}, "s1:a", ("s1:a",), b"\0" * 8, (1, 23), (12, 3), (1, -23),
    ]  # fmt: skip
    assert len({cache.digest(value) for value in tricky}) == len(tricky)
    assert cache.digest(nan) == cache.digest(float("nan"))
    calls = [(), ((),), (None,), ("a", "b"), (("a", "b"),), (["a", "b"],)]
    assert len({cache.digest(*parts) for parts in calls}) == len(calls)


class Mode(enum.IntEnum):
    FAST = 1


@pytest.mark.parametrize(
    ("value", "name"),
    [({1, 2}, "set"), (bytearray(b"x"), "bytearray"), (Path("x"), "Path"), (Mode.FAST, "Mode"), (1j, "complex")],
)
def test_an_unknown_type_is_named(value, name):
    with pytest.raises(TypeError, match=name):
        cache.digest("sm_90", {"of": [value]})


SAMPLE = '("sm_90", 1, True, 2.5, None, b"\\0x", [1, (2, "é")], {"b": 1, "a": {"z": [], "y": ()}, 3: 0.1})'
# sha256 of the encoding written out by hand; entries of released versions depend on it.
SAMPLE_BYTES = (
    b"(2:i1;(8:s5:sm_90i1;Tf\0\0\0\0\0\0\x04@nb2:\0x[2:i1;(2:i2;s2:\xc3\xa9"
    b"{3:(2:i3;f\x9a\x99\x99\x99\x99\x99\xb9?(2:s1:a{2:(2:s1:y(0:(2:s1:z[0:(2:s1:bi1;"
)


def test_digest_is_stable_across_processes_and_versions():
    code = f"print(cache.digest(*{SAMPLE}))"
    seen = {output(start(code, PYTHONHASHSEED=seed)).strip() for seed in ("0", "1", "4242")}
    assert seen == {hashlib.sha256(SAMPLE_BYTES).hexdigest()}


# --- one entry --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ltoir", "traits", "kernel", "tuning"])
@pytest.mark.parametrize("payload", [b"", b"x", PAYLOAD, os.urandom(300_000)], ids=len)
def test_what_was_stored_is_loaded(folder, kind, payload):
    assert cache.load(kind, KEY) is None
    assert cache.store(kind, KEY, payload, META)
    assert cache.load(kind, KEY) == cache.Entry(META, payload)
    assert cache.load(kind, OTHER) is None
    assert all(cache.load(other, KEY) is None for other in cache.KINDS if other != kind)
    assert cache.store(kind, KEY, b"new")
    assert cache.load(kind, KEY) == cache.Entry({}, b"new")


def test_entries_are_private_and_the_folder_holds_nothing_else(folder):
    old = os.umask(0)
    try:
        assert cache.store("kernel", KEY, PAYLOAD, META)
    finally:
        os.umask(old)
    assert [path.name for path in folder.iterdir()] == [path_of(folder).name]
    assert stat.S_IMODE(path_of(folder).stat().st_mode) == 0o600
    assert {stat.S_IMODE(made.stat().st_mode) for made in (folder, *list(folder.parents)[:2])} == {0o700}


def test_unknown_kinds_and_keys_are_refused(folder):
    for bad in ("cubin", "", "Kernel", "../kernel"):
        for call in (cache.clear, lambda kind: cache.load(kind, KEY), lambda kind: cache.store(kind, KEY, b"")):
            with pytest.raises(ValueError, match="valid are 'ltoir', 'traits', 'kernel', 'tuning'"):
                call(bad)
    for bad in ("", "abc", KEY.upper(), KEY + "\n", "../" + KEY, KEY[:-1] + "/", KEY + "0", KEY + ".devmath"):
        with pytest.raises(ValueError, match="64 lower-case hexadecimal digits"):
            cache.load("kernel", bad)
        with pytest.raises(ValueError, match="64 lower-case hexadecimal digits"):
            cache.store("kernel", bad, b"")
    assert not folder.exists()


def test_what_is_no_payload_or_no_json_is_refused(folder):
    with pytest.raises(TypeError, match="payload is a str"):
        cache.store("kernel", KEY, "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="JSON"):
        cache.store("kernel", KEY, b"", {"what": object()})
    assert not folder.exists()


def damaged(folder: Path, data: bytes) -> bool:
    """Whether an entry with these bytes reads as None and is gone afterwards."""
    path = path_of(folder)
    path.write_bytes(data)
    return cache.load("kernel", KEY) is None and not path.exists()


def small_entry(folder: Path) -> bytes:
    assert cache.store("kernel", KEY, b"payload", {"a": 1})
    data = path_of(folder).read_bytes()
    assert not damaged(folder, data), "an undamaged entry must load, or the tests of damage show nothing"
    return data


def test_every_truncation_is_damage(folder):
    data = small_entry(folder)
    assert all(damaged(folder, data[:length]) for length in range(len(data)))


def test_every_flipped_bit_is_damage(folder):
    data = small_entry(folder)
    for position, bit in itertools.product(range(len(data)), range(8)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << bit
        assert damaged(folder, bytes(flipped)), (position, bit)


def sealed(header: object, payload: bytes, magic=b"devmath\0", schema=1, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = struct.pack("<8sII", magic, schema, len(text) if length is None else length) + text + payload
    return body + hashlib.sha256(body).digest()


def test_a_right_checksum_over_wrong_contents_is_damage(folder):
    data = small_entry(folder)
    right = {"kind": "kernel", "key": KEY, "size": 7, "meta": {"a": 1}}
    assert sealed(right, b"payload") == data
    wrong = [
        sealed(right | {"key": OTHER}, b"payload"),
        sealed(right | {"kind": "ltoir"}, b"payload"),
        sealed(right, b"payload and more"),
        sealed(right, b"payloa"),
        sealed(right, b"payload", magic=b"cupy\0\0\0\0"),
        sealed(right, b"payload", schema=2),
        sealed(right, b"payload", length=1 << 31),
        sealed(right, b"payload", length=3),
        sealed({key: right[key] for key in ("kind", "key", "size")}, b"payload"),
        sealed([right], b"payload"),
        sealed(b"\xff\xfe", b"payload"),
        hashlib.sha256(b"").digest(),
        b"short" + hashlib.sha256(b"short").digest(),
        data + b"\0",
        data + data,
        b"\0" * len(data),
    ]
    for number, each in enumerate(wrong):
        assert damaged(folder, each), number


def test_an_entry_under_another_name_is_damage(folder):
    assert cache.store("kernel", OTHER, b"other")
    path_of(folder, key=OTHER).rename(path_of(folder))
    assert cache.load("kernel", KEY) is None
    assert not path_of(folder).exists()


def test_loading_is_fast(folder):
    assert cache.store("kernel", KEY, os.urandom(100_000), META)

    def seconds() -> float:
        begin = time.perf_counter()
        cache.load("kernel", KEY)
        return time.perf_counter() - begin

    assert min(seconds() for _ in range(200)) < 1e-3


def test_importing_and_loading_need_only_the_standard_library(folder):
    code = """
import sys
cache.load("kernel", cache.digest(1)); cache.store("kernel", cache.digest(1), b"1"); cache.info()
roots = {name.split(".")[0] for name, module in sys.modules.items() if getattr(module, "__file__", None)}
print("platformdirs" in roots, "numba" in roots, "numpy" in roots, "pickle" in roots)
"""
    assert output(start(code)).split() == ["False"] * 4


def test_the_users_cache_folder_is_the_default(monkeypatch, tmp_path):
    monkeypatch.delenv("DEVMATH_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert cache.directory() == tmp_path / "devmath"
    assert "devmath" in cache.directory().parts
    monkeypatch.setenv("DEVMATH_CACHE_DIR", "~/elsewhere")
    assert cache.directory() == Path.home() / "elsewhere"


# --- several processes ------------------------------------------------------------------------------------------------

WORKER = """
import json
me, rounds = int(sys.argv[1]), int(sys.argv[2])
evicting = sys.argv[3] == "evicting"
shared = [cache.digest("shared", i) for i in range(3)]
mine = cache.digest("mine", me)
print("ready", flush=True)
sys.stdin.readline()
hits = misses = 0
stored = set()
for turn in range(rounds):
    for key in (*shared, mine):
        if (turn + me) % 3 == 0:
            size = 1 + (turn * 7919 + me * 104729) % 20000
            assert cache.store("kernel", key, bytes([me]) * size, {"writer": me, "size": size}), "store refused"
            stored.add(key)
        entry = cache.load("kernel", key)
        if entry is None:
            misses += 1
            # A writer replaces an entry in one step: once stored, there is always one, unless something removes it.
            assert evicting or key not in stored, "an entry vanished"
            continue
        hits += 1
        assert entry.payload == bytes([entry.meta["writer"]]) * entry.meta["size"], "a wrong entry"
        assert key != mine or entry.meta["writer"] == me, "an entry of another key"
print(json.dumps([hits, misses]))
"""


@pytest.mark.parametrize(("mode", "size"), [("keeping", "1G"), ("evicting", "60K")])
def test_eight_processes_share_a_folder(folder, monkeypatch, mode, size):
    monkeypatch.setenv("DEVMATH_CACHE_SIZE", size)
    workers = [start(WORKER, me, 24, mode) for me in range(8)]
    for worker in workers:
        assert worker.stdout and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("go\n")
        worker.stdin.flush()
    counts = [json.loads(output(worker)) for worker in workers]
    assert all(hits > 0 for hits, _ in counts)
    if mode == "evicting":
        assert sum(misses for _, misses in counts) > 0
    assert not list(folder.glob("*.tmp"))


KILLED = """
import os, time
def stop(*args):
    print("here", flush=True)
    time.sleep(60)
where = sys.argv[1]
if where == "write":
    write = os.write
    os.write = lambda file, data: (write(file, data[: len(data) // 2]), stop())
else:
    setattr(os, where, stop)
cache.store("kernel", sys.argv[2], b"new" * 1000, {"new": True})
"""


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
@pytest.mark.parametrize("before", [None, b"old"])
def test_a_killed_writer_leaves_no_wrong_entry(folder, where, before):
    if before is not None:
        assert cache.store("kernel", KEY, before)
    writer = start(KILLED, where, KEY)
    assert writer.stdout and writer.stdout.readline() == "here\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=60)
    (left,) = folder.glob("*.tmp")
    entry = cache.load("kernel", KEY)
    assert entry == (None if before is None else cache.Entry({}, before))
    assert cache.store("kernel", KEY, b"newer")
    assert cache.load("kernel", KEY) == cache.Entry({}, b"newer")
    assert cache.info().entries == 1
    assert left.exists()


def test_temporary_files_of_killed_writers_go_after_an_hour(folder, monkeypatch):
    folder.mkdir(mode=0o700, parents=True)
    stale, fresh = (folder / f"kernel-{OTHER}.{digit * 16}.tmp" for digit in "ab")
    foreign = folder / "notes.tmp"
    for path, seconds in ((stale, 3700), (fresh, 3500), (foreign, 10**6)):
        path.write_bytes(b"half")
        age(path, seconds)
    assert cache.store("kernel", KEY, b"x")
    assert not stale.exists()
    assert fresh.exists()
    assert foreign.exists()
