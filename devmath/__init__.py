"""devmath: NVIDIA's device math libraries inside the kernels that you write in Python, on the GPU and on the CPU."""

from __future__ import annotations

from . import errors, fft, random
from .artifact import CompiledKernel, compile, load
from .kernel import Kernel, kernel
from .plan import Plan, from_json
from .targets import cuda as _cuda_target
from .targets import simulating as _simulating

__version__ = "0.1.0"

if _cuda_target.available() and not _simulating():
    _cuda_target.register()

__all__ = ["CompiledKernel", "Kernel", "Plan", "compile", "errors", "fft", "from_json", "kernel", "load", "random"]
