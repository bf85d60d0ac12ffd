"""Random numbers inside kernels."""

from .plan import Philox

__all__ = ["Philox"]
