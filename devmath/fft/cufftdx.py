"""cuFFTDx's side of an FFT plan: sizes, operators, traits and knobs, through libmathdx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import types
from ..arch import Arch
from ..codegen import mathdx
from ..errors import PlanError

if TYPE_CHECKING:
    from .plan import FFT

#: Sizes above ``ANY_SIZE`` that cuFFTDx has an implementation for, by precision; which of them fit depends on the architecture's shared memory.
LARGE = {
    "float16": (9261, 10000, 10648, 12167, 13824, 15625, 16384, 16807, 17576, 19683, 21952, 24389, 27000, 29791, 32768),
    "float32": (9261, 10000, 10648, 12167, 13824, 15625, 16384, 16807, 17576, 19683, 20736, 21952, 24389, 27000, 29791, 32768),
    "float64": (9261, 10000, 10648, 12167, 13824, 15625, 16384),
}
ANY_SIZE = 8192
THREAD_LIMIT = {"float16": 64, "float32": 64, "float64": 40}
# fmt: off
_OWN = (
    68, 72, 76, 80, 81, 84, 88, 92, 96, 100, 104, 108, 112, 116, 120, 121, 124, 125, 128, 136, 144, 152, 160, 168, 169, 176, 180, 184, 192, 196,
    200, 208, 216, 224, 225, 232, 240, 243, 248, 252, 256, 272, 288, 289, 300, 304, 320, 324, 336, 343, 352, 360, 361, 368, 384, 392, 400, 416,
    432, 441, 448, 464, 480, 484, 496, 500, 504, 512, 529, 576, 625, 676, 729, 784, 841, 900, 961, 1000, 1024, 1296, 1331, 1728, 2048, 2187,
    2197, 2401, 2744, 3125, 3375, 4096, 4913, 5832, 6561, 6859, 7776, 8000, 8192,
)
# fmt: on
_OWN_DOUBLE = (44, 48, 49, 52, 56, 60, 64)
#: Sizes that cuFFTDx does not do through a transform of more points, in block execution; the traits of all sizes say the same, and take seconds.
OWN = {real: (*range(1, most + 1), *(_OWN_DOUBLE if most < 64 else ()), *_OWN, *LARGE[real]) for real, most in THREAD_LIMIT.items()}

FFT_TYPES = {"c2c": 0, "r2c": 1, "c2r": 2}
LAYOUTS = {"natural": 0, "packed": 1, "full": 2}
REAL_MODES = {"normal": 0, "folded": 1}
TRANSPOSITIONS = {"any": 0, "none": 1, "by_component": 2, "by_complex": 3, "by_component_padded": 4}
THREAD_LAYOUTS = {"regular": 0, "transposed": 1}

Knobs = tuple[int | None, int | None]

# Codes of libcufftdx.h.
_OP = {
    "size": 0,
    "direction": 1,
    "type": 2,
    "precision": 3,
    "sm": 4,
    "execution": 5,
    "ffts_per_block": 6,
    "elements_per_thread": 7,
    "real_fft_options": 9,
    "api": 10,
    "transposition": 14,
    "thread_layout": 15,
}
_TRAIT = {
    "elements_per_thread": 4,
    "storage_size": 5,
    "stride": 6,
    "block_dim": 7,
    "shared_memory_size": 8,
    "ffts_per_block": 9,
    "symbol": 10,
    "input_length": 11,
    "output_length": 12,
    "input_elements_per_thread": 13,
    "output_elements_per_thread": 14,
}


def operators(plan: FFT, arch: Arch, knobs: Knobs) -> tuple[tuple[int, int | tuple[int, ...]], ...]:
    """The libmathdx operators of *plan* for an architecture."""
    elements, per_block = knobs
    ops: list[tuple[int, int | tuple[int, ...]]] = [
        (_OP["api"], 0),
        (_OP["sm"], arch.number),
        (_OP["size"], plan.size),
        (_OP["precision"], types.BY_NAME[np.dtype(plan.precision).name].mathdx or 0),
        (_OP["type"], FFT_TYPES[plan.fft_type]),
        (_OP["direction"], 0 if plan.direction == "forward" else 1),
        (_OP["execution"], 1 if plan.execution == "block" else 0),
    ]
    if plan.fft_type != "c2c":
        ops.append((_OP["real_fft_options"], (LAYOUTS[plan.complex_layout], REAL_MODES[real_mode(plan)])))
    if plan.execution == "block":
        if elements:
            ops.append((_OP["elements_per_thread"], elements))
        if per_block:
            ops.append((_OP["ffts_per_block"], per_block))
        if plan.thread_layout != "regular":
            ops.append((_OP["thread_layout"], THREAD_LAYOUTS[plan.thread_layout]))
        if plan.fields["transposition"]:
            ops.append((_OP["transposition"], TRANSPOSITIONS[plan.fields["transposition"]]))
    return tuple(ops)


def real_mode(plan: FFT) -> str:
    """The way in which cuFFTDx is to do a real transform that leaves it open: in half precision two real numbers are a 32-bit word for memory."""
    whole = plan.half and plan.execution == "block" and plan.size >= 4 and not plan.size & (plan.size - 1)
    return plan.fields["real_mode"] or ("folded" if whole else "normal")


def valid_knobs(plan: FFT, arch: Arch) -> list[tuple[int, int]]:
    """(elements_per_thread, ffts_per_block) pairs that cuFFTDx recommends."""
    pairs = mathdx.Descriptor("cufftdx", operators(plan, arch, (None, None))).knobs((0, 1))
    return [(elements, per_block) for elements, per_block in sorted(set(pairs))]


def ask(plan: FFT, arch: Arch, ops: tuple) -> dict[str, Any]:
    """The traits that libmathdx tells, as plain values."""
    d = mathdx.Descriptor("cufftdx", ops)
    if not d.supported():
        raise PlanError(_why_not(plan, arch))
    found: dict[str, Any] = {"arch": arch.name, "symbol": d.text(_TRAIT["symbol"])}
    for name in ("elements_per_thread", "storage_size", "stride"):
        found[name] = d.trait(_TRAIT[name])
    if plan.fft_type != "c2c":
        found["real_mode"] = real_mode(plan)
        folded = found["real_mode"] == "folded"
        for side, real in (("input", plan.fft_type == "r2c"), ("output", plan.fft_type == "c2r")):
            for what in ("length", "elements_per_thread"):
                # cuFFTDx counts a folded side in pairs; rows are counted in their own elements.
                found[f"{side}_{what}"] = d.trait(_TRAIT[f"{side}_{what}"]) * (2 if real and folded else 1)
    if plan.half:
        found["storage_size"] *= 4  # the parts of two transforms' elements
    if plan.execution == "thread":
        return {**found, "ffts_per_block": 2 if plan.half else 1, "block_dim": [1, 1, 1], "shared_memory_size": 0, "stride": 1}
    found["ffts_per_block"] = d.trait(_TRAIT["ffts_per_block"])
    found["block_dim"] = list(d.traits(_TRAIT["block_dim"], 3))
    found["shared_memory_size"] = d.trait(_TRAIT["shared_memory_size"])
    return found


def _why_not(plan: FFT, arch: Arch) -> str:
    asked = plan.fields["elements_per_thread"]
    real = np.dtype(plan.precision).name
    free = plan.replace(elements_per_thread=None, ffts_per_block=None, transposition=None, arch=None)
    kind = "" if plan.fft_type == "c2c" else f" {plan.fft_type} (complex_layout={plan.complex_layout!r}, real_mode={plan.fields['real_mode']!r})"
    if not mathdx.Descriptor("cufftdx", operators(free, arch, (None, None))).supported():
        return f"cuFFTDx has no{kind} transform of {plan.size} points in {real} on {arch}{_nearest(free, arch)}"
    if plan.fields["transposition"] is not None:
        ops = operators(free, arch, (None, None))
        names = [n for n, code in TRANSPOSITIONS.items() if mathdx.Descriptor("cufftdx", (*ops, (_OP["transposition"], code))).supported()]
        return (
            f"{plan.short_name()} in {real} on {arch} has no implementation with elements_per_thread={asked} and "
            f"transposition={plan.fields['transposition']!r}; without elements_per_thread it can be {', '.join(map(repr, names))}"
        )
    why = f"{plan.short_name()} in {real} on {arch} has no implementation with elements_per_thread={asked}"
    pairs = plan.valid_knobs(arch)
    if not pairs:
        return f"{why}, and cuFFTDx recommends no other number"
    near = min(pairs, key=lambda p: abs(p[0] - (asked or p[0])))
    return f"{why}; (elements_per_thread, ffts_per_block) can be {', '.join(map(str, pairs))} (nearest: {near})"


def _nearest(plan: FFT, arch: Arch) -> str:
    """The nearest size that does work, as the end of a message."""
    real = np.dtype(plan.precision).name
    sizes = (*range(2, ANY_SIZE + 1), *LARGE[real]) if plan.execution == "block" else range(2, THREAD_LIMIT[real] + 1)
    for n in sorted(sizes, key=lambda n: abs(n - plan.size)):
        try:
            other = plan.replace(size=n)
        except PlanError:
            continue
        if mathdx.Descriptor("cufftdx", operators(other, arch, (None, None))).supported():
            return f" (nearest: {n})"
    return ""
