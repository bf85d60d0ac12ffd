"""Fourier transforms inside kernels, from cuFFTDx."""

from .fast import next_fast_size
from .nd import FFTN
from .plan import FFT

__all__ = ["FFT", "FFTN", "next_fast_size"]
