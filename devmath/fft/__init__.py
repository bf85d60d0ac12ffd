"""Fourier transforms inside kernels, from cuFFTDx."""

from .nd import FFTN
from .plan import FFT

__all__ = ["FFT", "FFTN"]
