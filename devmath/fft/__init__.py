"""Fourier transforms inside kernels, from cuFFTDx."""

from .plan import FFT

__all__ = ["FFT"]
