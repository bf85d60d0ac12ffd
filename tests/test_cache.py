"""Laws of the disk cache: keys never collide, a read is None or right, and disk trouble only costs speed."""

import enum
import errno
import hashlib
import itertools
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from devmath import cache

KEY = cache.digest("a key")
OTHER = cache.digest("another key")
PAYLOAD = bytes(range(256)) * 8
META = {"symbol": "devmath_fft", "shape": [4, 8], "registers": 32}

# Another process loads the one file: it needs neither numba nor the rest of the package, so it starts at once.
LOADER = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("devmath_cache", {cache.__file__!r})
cache = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = cache
spec.loader.exec_module(cache)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that does not exist yet; the environment names it."""
    path = tmp_path / "made" / "by" / "devmath"
    monkeypatch.setenv("DEVMATH_CACHE_DIR", str(path))
    monkeypatch.delenv("DEVMATH_CACHE", raising=False)
    monkeypatch.delenv("DEVMATH_CACHE_SIZE", raising=False)
    return path


def start(code: str, *args: object, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LOADER + code, *map(str, args)]
    return subprocess.Popen(
        command, env=os.environ | env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def output(process: subprocess.Popen[str], told: str = "") -> str:
    out, err = process.communicate(told, timeout=60)
    assert process.returncode == 0, err
    return out


def path_of(folder: Path, kind: str = "kernel", key: str = KEY) -> Path:
    return folder / f"{kind}-{key}.devmath"


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def refuse(number: int):
    def refusing(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return refusing


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


@settings(max_examples=150, deadline=None)
@given(values, values)
def test_digests_are_equal_exactly_when_the_values_are(one, two):
    assert (cache.digest(one) == cache.digest(two)) == (meaning(one) == meaning(two))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=3), max_size=4), st.lists(st.text(max_size=3), max_size=4))
def test_where_parts_are_cut_matters(one, two):
    assume(one != two)
    assert cache.digest(*one) != cache.digest(*two)
    assert cache.digest(one) != cache.digest(two)
    assert cache.digest(*[part.encode() for part in one]) != cache.digest(*[part.encode() for part in two])


@settings(max_examples=50, deadline=None)
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


# --- a disk that refuses ----------------------------------------------------------------------------------------------


def nothing_works(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.load("kernel", KEY) is None
        assert cache.store("kernel", KEY, PAYLOAD, META) is False
        assert cache.load("kernel", KEY) is None
        assert cache.once("kernel", KEY, lambda: (PAYLOAD, META)) == cache.Entry(META, PAYLOAD)
        assert cache.clear() == 0
        assert cache.info().entries == 0


def test_a_read_only_disk(folder, monkeypatch):
    folder.mkdir(mode=0o700, parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse(errno.EROFS))
        nothing_works(folder)
    assert list(folder.iterdir()) == []
    assert cache.store("kernel", KEY, PAYLOAD)


def test_a_read_only_disk_without_the_folder(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refuse(errno.EROFS))
        nothing_works(folder)
    assert not folder.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write to a read-only folder")
def test_a_read_only_folder(folder):
    folder.mkdir(mode=0o500, parents=True)
    nothing_works(folder)
    assert cache.info().writable is False


def test_a_read_only_disk_still_reads(folder, monkeypatch):
    assert cache.store("kernel", KEY, PAYLOAD, META)
    age(path_of(folder), 7200)
    for name in ("utime", "unlink", "replace", "mkdir"):
        monkeypatch.setattr(os, name, refuse(errno.EROFS))
    assert cache.load("kernel", KEY) == cache.Entry(META, PAYLOAD)
    assert cache.clear() == 0
    path_of(folder).write_bytes(b"damaged")
    assert cache.load("kernel", KEY) is None


@pytest.mark.parametrize("name", ["write", "fsync", "close", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk(folder, monkeypatch, name, number):
    real = getattr(os, name)

    def half(*args):
        if name == "write" and len(args[1]) > 500:
            return real(args[0], args[1][:500])  # the disk takes a part, then no more
        if name == "close":
            real(*args)
        raise OSError(number, os.strerror(number))

    assert cache.store("kernel", OTHER, b"before")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, half)
        assert cache.store("kernel", KEY, PAYLOAD, META) is False
        assert cache.load("kernel", KEY) is None
        assert [path.name for path in folder.iterdir()] == [path_of(folder, key=OTHER).name]
    assert cache.store("kernel", KEY, PAYLOAD, META)
    assert cache.load("kernel", KEY) == cache.Entry(META, PAYLOAD)
    assert cache.load("kernel", OTHER) == cache.Entry({}, b"before")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on file sizes")
def test_a_file_that_may_not_grow(folder):
    code = """
import os, resource
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
key = cache.digest(1)
print(cache.store("kernel", key, b"x" * 10000), cache.load("kernel", key), os.listdir(sys.argv[1]))
print(cache.store("kernel", key, b"x" * 1000), cache.load("kernel", key).payload == b"x" * 1000)
"""
    assert output(start(code, folder)) == "False None []\nTrue True\n"


def test_short_writes_are_continued(folder, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:100]))
    assert cache.store("kernel", KEY, PAYLOAD, META)
    assert cache.load("kernel", KEY) == cache.Entry(META, PAYLOAD)


def test_an_interrupted_write_leaves_nothing(folder, monkeypatch):
    def interrupt(file):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.store("kernel", KEY, PAYLOAD)
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "file/below", "dangling"):
        monkeypatch.setenv("DEVMATH_CACHE_DIR", str(tmp_path / name))
        nothing_works(tmp_path / name)
        assert cache.info().writable is False
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_in_the_place_of_an_entry(folder):
    path_of(folder).mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    nothing_works(folder)
    assert list(folder.iterdir()) == [path_of(folder)]


# --- a folder that others could write ---------------------------------------------------------------------------------

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX owners and modes")


def refused(match: str) -> None:
    """Nothing is read, written or removed, and one warning says why."""
    with pytest.warns(RuntimeWarning, match=match) as caught:
        assert cache.load("kernel", KEY) is None
        assert cache.load("kernel", KEY) is None
        assert cache.store("kernel", OTHER, PAYLOAD) is False
        assert cache.clear() == 0
        assert cache.info().enabled is False
    assert len(caught) == 1
    assert caught[0].filename == __file__


@posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_can_write_is_not_used(folder, mode):
    assert cache.store("kernel", KEY, b"planted")
    folder.chmod(mode)
    refused(f"can be written by others.*{mode:o}")
    assert list(folder.iterdir()) == [path_of(folder)]
    folder.chmod(0o755)
    assert cache.load("kernel", KEY) == cache.Entry({}, b"planted")


@posix
def test_a_folder_of_another_user_is_not_used(folder, monkeypatch):
    assert cache.store("kernel", KEY, b"planted")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    refused("belongs to another user")
    assert list(folder.iterdir()) == [path_of(folder)]


@posix
def test_a_link_to_a_folder_that_others_can_write_is_not_used(tmp_path, monkeypatch):
    target = tmp_path / "target"
    target.mkdir()
    target.chmod(0o777)
    (tmp_path / "link").symlink_to(target)
    monkeypatch.setenv("DEVMATH_CACHE_DIR", str(tmp_path / "link"))
    refused("can be written by others")
    assert list(target.iterdir()) == []


@posix
@pytest.mark.parametrize("call", ["lstat", "stat"])
def test_a_link_must_be_ours_and_so_must_be_what_it_names(tmp_path, monkeypatch, call):
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(target)
    monkeypatch.setenv("DEVMATH_CACHE_DIR", str(link))
    assert cache.store("kernel", KEY, b"through a link of our own")
    real = getattr(os, call)

    def of_another(path, **kwargs):
        status = list(real(path, **kwargs))
        status[stat.ST_UID] += str(path) == str(link)
        return os.stat_result(status)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, of_another)
        refused("belongs to another user")
    assert [path.name for path in target.iterdir()] == [path_of(target).name]


@posix
def test_a_linked_entry_is_neither_read_nor_written_through(folder, tmp_path):
    assert cache.store("kernel", KEY, b"victim")
    victim = tmp_path / "victim"
    path_of(folder).rename(victim)
    before = victim.read_bytes()
    path_of(folder).symlink_to(victim)
    assert cache.load("kernel", KEY) is None
    assert cache.clear() == 0
    assert cache.info().entries == 0
    assert cache.store("kernel", KEY, b"new")
    assert victim.read_bytes() == before
    assert not path_of(folder).is_symlink()
    assert cache.load("kernel", KEY) == cache.Entry({}, b"new")


@posix
def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(folder, tmp_path, monkeypatch):
    folder.mkdir(parents=True, mode=0o700)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr(os, "urandom", lambda count: b"\xab" * count)
    (folder / f"kernel-{KEY}.{'ab' * 8}.tmp").symlink_to(victim)
    assert cache.store("kernel", KEY, b"new") is False
    assert victim.read_bytes() == b"precious"


# --- bounded size -----------------------------------------------------------------------------------------------------


def fill(count: int, size: int = 10_000) -> list[str]:
    keys = [cache.digest("fill", number) for number in range(count)]
    for number, key in enumerate(keys):
        assert cache.store(cache.KINDS[number % 4], key, b"x" * size)
    return keys


def test_the_least_recently_used_go_first(folder, monkeypatch):
    keys = fill(8)
    for number, key in enumerate(keys):
        age(path_of(folder, cache.KINDS[number % 4], key), 90_000 - 1000 * number)
    assert cache.load(cache.KINDS[0], keys[0]) is not None
    size = path_of(folder, cache.KINDS[0], keys[0]).stat().st_size
    monkeypatch.setenv("DEVMATH_CACHE_SIZE", str(8 * size + 100))
    assert cache.store("kernel", KEY, b"x" * 10_000)
    there = [path_of(folder, cache.KINDS[number % 4], key).exists() for number, key in enumerate(keys)]
    assert there == [True, False, False, False, True, True, True, True]  # 6 of the 9 fit into 80 % of the limit
    assert cache.load("kernel", KEY) is not None


def test_what_another_process_removes_counts_as_removed(folder, monkeypatch):
    keys = fill(8)
    paths = [path_of(folder, cache.KINDS[number % 4], key) for number, key in enumerate(keys)]
    for number, path in enumerate(paths):
        age(path, 90_000 - 1000 * number)
    unlink, scandir = os.unlink, os.scandir

    def too_late(path):
        unlink(path)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    class Vanishing(list):
        """A listing with an entry that is gone before it is looked at."""

        def __enter__(self):
            unlink(paths[0])
            return self

        def __exit__(self, *error):
            pass

    size = paths[0].stat().st_size
    monkeypatch.setenv("DEVMATH_CACHE_SIZE", str(7 * size + 100))
    monkeypatch.setattr(os, "unlink", too_late)
    monkeypatch.setattr(os, "scandir", lambda path: Vanishing(scandir(path)))
    assert cache.store("kernel", KEY, b"x" * 10_000)
    # 5 of the 8 that are left fit into 80 % of the limit.
    assert [path.exists() for path in paths] == [False, False, False, False, True, True, True, True]


def test_the_size_stays_bounded(folder, monkeypatch):
    monkeypatch.setenv("DEVMATH_CACHE_SIZE", "100k")
    largest = 0
    for number in range(60):
        key = cache.digest(number)
        assert cache.store("traits", key, b"x" * (number * 377 % 9000))
        assert cache.load("traits", key) is not None
        largest = max(largest, sum(path.stat().st_size for path in folder.iterdir()))
    assert 80 * 1024 < largest <= 105 * 1024
    assert 10 < cache.info().entries < 60


def test_an_entry_that_does_not_fit_is_refused(folder, monkeypatch):
    assert cache.store("kernel", OTHER, b"small")
    monkeypatch.setenv("DEVMATH_CACHE_SIZE", "10K")
    assert cache.store("kernel", KEY, b"x" * 9000) is False
    assert cache.store("kernel", KEY, b"x" * 7000) is True
    assert cache.load("kernel", OTHER) is not None
    monkeypatch.setenv("DEVMATH_CACHE_SIZE", "0")
    assert cache.store("kernel", KEY, b"") is False


def test_the_folder_is_scanned_after_the_first_store_and_then_seldom(folder, monkeypatch):
    monkeypatch.setenv("DEVMATH_CACHE_SIZE", "1M")
    scans = []
    scandir = os.scandir

    def counted(path):
        scans.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    each = 1024 * 1024 // 20 // 4
    counts = []
    for number in range(9):
        cache.store("kernel", cache.digest(number), b"x" * (each - 250))
        cache.load("kernel", cache.digest(number))
        counts.append(len(scans))
    assert counts == [1, 1, 1, 1, 1, 2, 2, 2, 2] or counts == [1, 1, 1, 1, 2, 2, 2, 2, 3]


@pytest.mark.parametrize(("seconds", "touched"), [(7200, True), (1800, False), (-7200, True)])
def test_loading_touches_an_entry_at_most_once_an_hour(folder, seconds, touched):
    assert cache.store("kernel", KEY, b"x")
    age(path_of(folder), seconds)
    assert cache.load("kernel", KEY) is not None
    now = abs(time.time() - path_of(folder).stat().st_mtime) < 60
    assert now == touched


@pytest.mark.parametrize(
    ("text", "limit"),
    [("", 2 << 30), ("0", 0), ("123", 123), ("4K", 4096), ("4k", 4096), ("3M", 3 << 20), ("5G", 5 << 30)],
)
def test_the_limit(folder, monkeypatch, text, limit):
    monkeypatch.setenv("DEVMATH_CACHE_SIZE", text)
    assert cache.info().limit == limit


@pytest.mark.parametrize("text", ["2GB", "-1", "1.5G", "much", "K", "1 G", "4\u212a", "\u0664", "1" * 30])
def test_a_bad_limit_is_told_before_anything_is_built(folder, monkeypatch, text):
    monkeypatch.setenv("DEVMATH_CACHE_SIZE", text)

    def build():
        raise AssertionError("built")

    with pytest.raises(ValueError, match=r"DEVMATH_CACHE_SIZE=.*such as 500M or 2G"):
        cache.once("kernel", KEY, build)
    with pytest.raises(ValueError, match="DEVMATH_CACHE_SIZE"):
        cache.store("kernel", KEY, b"")
    with pytest.raises(ValueError, match="DEVMATH_CACHE_SIZE"):
        cache.info()


# --- the switch, info and clear ---------------------------------------------------------------------------------------


def test_the_switch(folder, monkeypatch):
    assert cache.store("kernel", KEY, PAYLOAD, META)
    monkeypatch.setenv("DEVMATH_CACHE", "0")
    assert cache.load("kernel", KEY) is None
    assert cache.store("kernel", OTHER, PAYLOAD) is False
    assert cache.info().enabled is False
    assert cache.info().entries == 1
    for on in ("1", ""):
        monkeypatch.setenv("DEVMATH_CACHE", on)
        assert cache.load("kernel", KEY) == cache.Entry(META, PAYLOAD)
        assert cache.info().enabled is True
    monkeypatch.setenv("DEVMATH_CACHE", "no")
    with pytest.raises(ValueError, match="DEVMATH_CACHE='no'.*0 turns the disk cache off"):
        cache.load("kernel", KEY)
    monkeypatch.setenv("DEVMATH_CACHE", "0")
    assert cache.clear() == 1


def test_info_of_nothing(folder):
    none = {kind: cache.Usage(0, 0) for kind in cache.KINDS}
    assert cache.info() == cache.Info(folder, 0, 0, 2 << 30, True, True, none)
    assert not folder.exists()


def test_info_counts_what_is_there(folder):
    fill(6)
    (folder / f"kernel-{KEY}.{'a' * 16}.tmp").write_bytes(b"half")
    (folder / "foreign").write_bytes(b"mine")
    found = cache.info()
    files = list(folder.glob("*.devmath"))
    assert (found.entries, found.bytes) == (6, sum(path.stat().st_size for path in files))
    assert [found.kinds[kind].entries for kind in cache.KINDS] == [2, 2, 1, 1]
    assert sum(usage.bytes for usage in found.kinds.values()) == found.bytes
    assert found.writable
    assert found.enabled


def test_clear_removes_entries_and_nothing_else(folder):
    keys = fill(8)
    foreign = [
        "notes.txt", "kernel-1.devmath", f"kernel-{KEY}.devmath.bak", f"cubin-{KEY}.devmath", f"kernel-{KEY}.tmp",
        f"kernel-{KEY.upper()}.devmath", f".kernel-{KEY}.devmath",
    ]  # fmt: skip
    for name in foreign:
        (folder / name).write_bytes(b"foreign")
    (folder / f"traits-{KEY}.devmath").mkdir()
    (folder / f"kernel-{KEY}.{'a' * 16}.tmp").write_bytes(b"half")
    assert cache.clear("traits") == 2
    assert [cache.load(cache.KINDS[number % 4], key) is None for number, key in enumerate(keys)] == [
        cache.KINDS[number % 4] == "traits" for number in range(8)
    ]
    assert cache.clear() == 6
    assert cache.clear() == 0
    assert {path.name for path in folder.iterdir()} == {*foreign, f"traits-{KEY}.devmath"}


# --- once -------------------------------------------------------------------------------------------------------------


def together(count: int, work) -> list:
    """What `work(number)` gives in each of `count` threads that start at the same time; an exception is its value."""
    barrier = threading.Barrier(count)
    results: list = [None] * count

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = work(number)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


@pytest.mark.parametrize("disk", ["0", "1"])
def test_threads_build_once(folder, monkeypatch, disk):
    monkeypatch.setenv("DEVMATH_CACHE", disk)
    built = []

    def work(number: int) -> cache.Entry:
        key = (KEY, OTHER)[number % 2]

        def build():
            built.append(key)
            time.sleep(0.1)
            return key.encode(), {"shape": (1, 2)}

        return cache.once("ltoir", key, build)

    results = together(8, work)
    assert sorted(built) == sorted((KEY, OTHER))
    assert results == [cache.Entry({"shape": [1, 2]}, (KEY, OTHER)[number % 2].encode()) for number in range(8)]
    assert not cache._slots


def test_different_keys_are_built_at_the_same_time(folder):
    meeting = threading.Barrier(2, timeout=10)

    def build():
        meeting.wait()
        return b"", {}

    assert together(2, lambda number: cache.once("ltoir", (KEY, OTHER)[number], build)) == [cache.Entry({}, b"")] * 2


def test_once_loads_what_an_earlier_process_built(folder):
    code = 'cache.once("traits", sys.argv[1], lambda: (b"built", {"shape": (1, 2)}))'
    output(start(code, KEY))

    def build():
        raise AssertionError("built again")

    assert cache.once("traits", KEY, build) == cache.Entry({"shape": [1, 2]}, b"built")


def test_a_build_that_fails_is_tried_again(folder):
    turns = itertools.count()

    def build():
        time.sleep(0.05)
        if next(turns) == 0:
            raise RuntimeError("NVRTC failed")
        return b"built", {}

    results = together(4, lambda number: cache.once("ltoir", KEY, build))
    failed = [result for result in results if isinstance(result, RuntimeError)]
    assert len(failed) == 1
    assert [result for result in results if result not in failed] == [cache.Entry({}, b"built")] * 3
    assert next(turns) == 2
    assert not cache._slots


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_a_thread_it_lacks(folder):
    building, finish = threading.Event(), threading.Event()

    def slow():
        building.set()
        finish.wait(30)
        return b"parent", {}

    thread = threading.Thread(target=cache.once, args=("ltoir", KEY, slow))
    thread.start()
    assert building.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        entry = cache.once("ltoir", KEY, lambda: (b"child", {}))
        os._exit(0 if entry.payload == b"child" else 1)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        finish.set()
        thread.join(30)
