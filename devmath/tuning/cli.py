"""``devmath tune fft | list | clear | export | import``."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ..errors import DevmathError
from ..fft.cufftdx import FFT_TYPES, LAYOUTS, THREAD_LAYOUTS
from ..plan import Plan, from_json
from . import store

_PRECISIONS = ("float16", "float32", "float64")


def add_parser(commands: Any) -> None:
    """Add the command to those of ``devmath``."""
    tune = commands.add_parser("tune", help="measure the fastest knobs of a plan on this GPU, and look after what was measured")
    what = tune.add_subparsers(dest="what", required=True, metavar="fft | list | clear | export | import")
    fft = what.add_parser("fft", help="measure a Fourier transform; FFT(...).tuned(...) then has the answer")
    fft.add_argument("--size", type=int, required=True, help="points")
    fft.add_argument("--precision", choices=_PRECISIONS, default="float32")
    fft.add_argument("--fft-type", choices=list(FFT_TYPES), default="c2c")
    fft.add_argument("--complex-layout", choices=list(LAYOUTS), default="natural")
    fft.add_argument("--thread-layout", choices=list(THREAD_LAYOUTS), default="regular")
    fft.add_argument("--api", choices=["registers", "shared"], default="registers")
    fft.add_argument("--batch", type=int, help="transforms of a launch (default: 256 MiB of input)")
    fft.add_argument("--pattern", choices=["convolution", "transform"], default="convolution", help="the kernel that is measured")
    fft.add_argument("--arch", help="for the answer that was measured on such a GPU, where there is none")
    fft.add_argument("--again", action="store_true", help="measure even if it was measured before")
    what.add_parser("list", help="print what was measured")
    what.add_parser("clear", help="remove what was measured")
    for name, text in (("export", "write what was measured to a file"), ("import", "take over what another machine exported")):
        what.add_parser(name, help=text).add_argument("file")


def run(args: argparse.Namespace) -> int:
    """Do what was asked; the exit status."""
    try:
        return {"fft": _fft, "list": _list, "clear": _clear, "export": _export, "import": _import}[args.what](args)
    except (DevmathError, OSError, ValueError) as e:
        print(f"devmath tune: {e}", file=sys.stderr)
        return 1


def _fft(args: argparse.Namespace) -> int:
    from ..fft import FFT
    from .search import answer

    plan = FFT(
        args.size,
        precision=args.precision,
        fft_type=args.fft_type,
        complex_layout=args.complex_layout,
        thread_layout=args.thread_layout,
        api=args.api,
        arch=args.arch,
    )
    entry = answer(plan, args.batch, args.pattern, None, None, args.again)
    if entry is None:
        print(f"{plan.short_name()} has no knobs")
        return 0
    for trial in sorted(entry["trials"], key=lambda t: t.get("ms", float("inf"))):
        outcome = f"{trial['ms']:.4f} ms" if "ms" in trial else trial["dropped"]
        print(f"{outcome:<12} {_knobs(trial['knobs'])}")
    print(_line(entry))
    return 0


def _list(args: argparse.Namespace) -> int:
    found = store.entries()
    for entry in found:
        print(_line(entry))
    print(f"{len(found)} in {store.directory()}")
    return 0


def _clear(args: argparse.Namespace) -> int:
    print(f"{store.clear()} removed from {store.directory()}")
    return 0


def _export(args: argparse.Namespace) -> int:
    print(f"{store.export(args.file)} written to {args.file}")
    return 0


def _import(args: argparse.Namespace) -> int:
    print(f"{store.import_(args.file)} taken over into {store.directory()}")
    return 0


def _line(entry: store.Entry) -> str:
    """An answer in a line."""
    key = entry["key"]
    plan = from_json(json.dumps(key["plan"]))
    answer = _knobs(entry["knobs"]) if entry["knobs"] else "the default is the fastest"
    gain = f", {entry['default_ms'] / entry['ms']:.3f} x the default" if entry["knobs"] else ""
    return f"{_described(plan)}, {key['pattern']}, batch {key['batch']}, {key['gpu']} ({key['arch']}), {entry['date'][:10]}: {answer}{gain}"


def _described(plan: Plan) -> str:
    """What of a plan is not as it would be if it were left out."""
    kind: Any = type(plan)
    plain = dict(kind(plan.fields["size"]).identity()[1:])
    said = [f"{k}={v!r}" for k, v in plan.identity()[1:] if k != "size" and v != plain[k]]
    return f"{plan.kind_name}({', '.join([str(plan.fields['size']), *said])})"


def _knobs(knobs: dict[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in knobs.items() if v is not None)
