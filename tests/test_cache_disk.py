"""Laws of the disk cache: disk trouble only costs speed, others can do no harm, the size is bounded."""

import errno
import itertools
import os
import signal
import stat
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
from cache_support import KEY, LOADER, META, OTHER, PAYLOAD, age, cache_folder, output, path_of, refuse, start  # noqa: F401

from devmath import cache

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
