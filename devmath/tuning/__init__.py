"""The fastest knobs of plans, measured on the device at hand and kept for the next process: :meth:`devmath.fft.FFT.tuned` and ``devmath tune``."""

from .store import clear, directory, entries, export, import_

__all__ = ["clear", "directory", "entries", "export", "import_"]
