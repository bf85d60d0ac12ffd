"""The Philox plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numba import njit
from numba import types as nbt

from ..errors import PlanError
from ..plan import Dim3, Plan, Target, Traits
from . import philox_math, records


class Philox(Plan):
    """The counter-based generator Philox4x32 for use inside kernels: a compile-time constant there, with no memory of its own.

    Parameters
    ----------
    rounds : 1 to 16; 10 is the published generator and cuRAND's, 7 the fewest that pass BigCrush.

    Each call ``(seed, stream, step)`` gives four words, whatever was asked before and whichever thread asks: results do not depend on the
    launch shape. The seed, stream and step are taken modulo 2^64, and all their bits count. With 10 rounds, call ``step`` of ``stream`` is
    what cuRAND's ``curand_init(seed, stream, 4 * step)`` and ``curand4`` give.

    Words and uniforms are bit-identical on the CPU and the GPU; normals agree within a few units in the last place (see each for its accuracy).

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
    """

    kind_name: ClassVar[str] = "Philox"
    variants: ClassVar = {"thread": records.PHILOX}
    constants: ClassVar = ("rounds",)
    trait_names: ClassVar = ("state_size",)

    def __init__(self, rounds: int = 10):
        if isinstance(rounds, bool) or not isinstance(rounds, int | np.integer):
            raise PlanError(f"rounds must be an integer, got {rounds!r}")
        if not 1 <= rounds <= 16:
            raise PlanError(f"rounds must be 1 to 16 (10 is the published generator, 7 the fewest that pass BigCrush), got {rounds}")
        self._set_fields(rounds=int(rounds))

    @property
    def words(self) -> Callable:
        """``words(seed, stream, step)`` as a function that kernels' meanings may call."""
        return self._jitted("words", lambda: philox_math.make_words(self.rounds))

    def jitted(self, name: str) -> Callable:
        """The meaning of a device function, for use in another one's."""
        meaning = self.functions[name].meaning
        assert meaning is not None
        return self._jitted(name, lambda: meaning(self, None))

    def _jitted(self, name: str, make: Callable[[], Callable]) -> Callable:
        key = ("jitted", name)
        if key not in self.meanings:
            self.meanings[key] = njit(make())
        return self.meanings[key]

    def element_type(self) -> Any:
        """numba's uint32: the words."""
        return nbt.uint32

    def short_name(self) -> str:
        """``Philox(10)``."""
        return f"Philox({self.rounds})"

    def compute_traits(self, target: Target) -> Traits:
        """The same on every target: ``state_size``, the words of a state."""
        return Traits(state_size=records.STATE_WORDS)

    def launch_shape(self, batch: int, target: Target, block: int | None) -> tuple[Dim3, Dim3]:
        """One thread for each of *batch* streams, 256 a block unless *block* says otherwise."""
        threads = block or 256
        return Dim3(-(-batch // threads)), Dim3(threads)
