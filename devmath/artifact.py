"""Kernels compiled ahead of time: a cubin for one or several architectures with all that a launch needs, in one file."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import types as nbt
from numba.core import sigutils
from numba.np.numpy_support import as_dtype, from_dtype

from . import arch as _arch
from . import arguments, launch
from .arch import Arch
from .errors import ArgumentError, ArtifactError, LaunchError, MissingDependency
from .kernel import Kernel
from .plan import Dim3, Plan, Traits, from_json

_MAGIC = b"DEVMATHK"
_VERSION = 1
_HEAD = struct.Struct("<8sII")


class Image(NamedTuple):
    """The kernel's code for one architecture."""

    arch: Arch
    name: str
    cubin: bytes


class CompiledKernel:
    """A kernel compiled ahead of time. ``compiled[plan.launch(batch)](...)`` or ``compiled[grid, block](...)`` runs it on a GPU.

    Attributes
    ----------
    name : the Python function's name. parameters : its parameters' names. signature : numba types of the parameters.
    archs : the architectures it holds code for. plans : the plans it uses, each with whether all threads of a block take part.
    """

    def __init__(self, name: str, parameters: list[str], signature: tuple[nbt.Type, ...], images: list[Image], plans: tuple[tuple[Plan, bool], ...]):
        self.name, self.parameters, self.signature, self.images, self.plans = name, parameters, signature, images, plans
        self._loaded: dict[Arch, Any] = {}

    @property
    def archs(self) -> list[str]:
        """Names of the architectures that it holds code for."""
        return [i.arch.name for i in self.images]

    def __repr__(self) -> str:
        return f"<devmath compiled kernel {self.name}({', '.join(map(str, self.signature))}) for {', '.join(self.archs)}>"

    def cubin(self, arch: object = None) -> bytes:
        """The cubin for *arch*; may be left out where there is one alone."""
        if arch is None and len(self.images) == 1:
            return self.images[0].cubin
        if arch is None:
            raise ValueError(f"arch must say which of {', '.join(self.archs)}")
        return self._image(_arch.parse(arch)).cubin

    def fatbin(self) -> bytes:
        """All cubins in one CUDA fat binary (through nvFatbin), for loaders outside devmath."""
        try:
            from cuda.bindings import nvfatbin

            handle = nvfatbin.create([], 0)
        except Exception:
            raise MissingDependency("writing a fat binary needs nvFatbin: pip install nvidia-nvfatbin") from None
        try:
            for image in self.images:
                nvfatbin.add_cubin(handle, image.cubin, len(image.cubin), image.arch.name.removeprefix("sm_"), image.name)
            out = bytearray(nvfatbin.size(handle))
            nvfatbin.get(handle, out)
            return bytes(out)
        finally:
            nvfatbin.destroy(handle)

    def launch_shape(self, config: Any, arch: object = None) -> launch.Shape:
        """Grid, block and dynamic shared memory for ``kernel[config]`` on *arch*; needs no GPU."""
        image = self.images[0] if arch is None and len(self.images) == 1 else self._image(_arch.parse(arch))
        return self._shape(launch.config(config), image)

    def _shape(self, cfg: launch.Config, image: Image) -> launch.Shape:
        if isinstance(cfg, launch.PlanLaunch):
            # The kernel's own plan of the same fields knows its traits from the file: nothing has to be asked of libmathdx.
            cfg = cfg._replace(plan=next((plan for plan, _ in self.plans if plan == cfg.plan), cfg.plan))
        return launch.resolve(self.name, cfg, self.plans, image.arch)

    def _image(self, arch: Arch) -> Image:
        fits = [i for i in self.images if i.arch.runs_on(arch)]
        if not fits:
            raise LaunchError(
                f"{self.name} was compiled for {', '.join(self.archs)}, none of which runs on {arch}; compile it with arch='{arch}' as well"
            )
        return max(fits, key=lambda i: (i.arch.cc, i.arch.suffix))

    def __getitem__(self, config: Any) -> Any:
        cfg = launch.config(config)
        stream = launch.stream_handle(cfg.stream)

        def run(*args: Any) -> None:
            from .device import GpuKernel, ensure_context

            looked = self._check(args)
            image = self._image(_arch.of_device(ensure_context()))
            if image.arch not in self._loaded:
                self._loaded[image.arch] = GpuKernel(image.cubin, image.name, self.signature, image.arch)
            self._loaded[image.arch].launch(self._shape(cfg, image), looked, stream)

        return run

    def _check(self, args: tuple[Any, ...]) -> list[arguments.Argument]:
        if len(args) != len(self.signature):
            raise ArgumentError(f"{self.name} takes {len(self.signature)} arguments ({', '.join(self.parameters)}), got {len(args)}")
        looked = []
        for parameter, want, value in zip(self.parameters, self.signature, args, strict=True):
            got = arguments.look_at(value)
            if got is not None and got.side == arguments.HOST:
                raise ArgumentError(f"{self.name}: {parameter} is in host memory (NumPy); a kernel compiled for the GPU takes device arrays")
            fitted = None if got is None else _fit(got, want)
            if fitted is None:
                raise ArgumentError(f"{self.name}: {parameter} is {got.type if got else type(value).__name__}, it was compiled for {want}")
            looked.append(fitted)
        return looked

    # -- files ----------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The whole kernel as bytes; :func:`load` reads them."""
        header = {
            "name": self.name,
            "parameters": self.parameters,
            "signature": [_spell(t) for t in self.signature],
            "plans": [[p.to_json(), c] for p, c in self.plans],
            "images": [
                {
                    "arch": i.arch.name,
                    "name": i.name,
                    "bytes": len(i.cubin),
                    "traits": [_spell_traits(p.traits(i.arch)) for p, _ in self.plans],
                }
                for i in self.images
            ],
        }
        text = json.dumps(header).encode()
        body = _HEAD.pack(_MAGIC, _VERSION, len(text)) + text + b"".join(i.cubin for i in self.images)
        return body + hashlib.sha256(body).digest()

    def save(self, path: str | Path) -> None:
        """Write the kernel to a file."""
        Path(path).write_bytes(self.to_bytes())


def _fit(got: arguments.Argument, want: nbt.Type) -> arguments.Argument | None:
    """An argument for a parameter of type *want*: equal, a stricter layout, or a number of another width."""
    if got.type == want:
        return got
    if isinstance(want, nbt.Array) and isinstance(got.type, nbt.Array):
        same = (got.type.dtype, got.type.ndim) == (want.dtype, want.ndim)
        writable = got.type.mutable or not want.mutable
        return got if same and writable and want.layout in ("A", got.type.layout) else None
    if got.side == arguments.SCALAR and len(got.words) == 1:
        if isinstance(want, nbt.Float) and isinstance(got.type, nbt.Float | nbt.Integer):
            return got._replace(words=(float(got.words[0]),), type=want)
        if isinstance(want, nbt.Integer) and isinstance(got.type, nbt.Integer):
            low, high = (-(2 ** (want.bitwidth - 1)), 2 ** (want.bitwidth - 1)) if want.signed else (0, 2**want.bitwidth)
            return got._replace(type=want) if low <= got.words[0] < high else None
    return None


def _spell(ty: nbt.Type) -> Any:
    """A type as JSON: a number by its name, an array as ``[dtype, ndim, layout, "readonly" or "writable"]``, a tuple as ``{"tuple": [...]}``."""
    if isinstance(ty, nbt.Array):
        return [_spell(ty.dtype), ty.ndim, ty.layout, "writable" if ty.mutable else "readonly"]
    if isinstance(ty, nbt.BaseTuple):
        return {"tuple": [_spell(t) for t in ty]}
    if not isinstance(ty, nbt.Number | nbt.Boolean):
        raise ArtifactError(f"a kernel that takes {ty} cannot be saved; numbers, arrays of numbers and tuples of numbers can")
    return str(as_dtype(ty))


def _unspell(spelled: Any) -> nbt.Type:
    if isinstance(spelled, dict):
        items = [_unspell(t) for t in spelled["tuple"]]
        return nbt.UniTuple(items[0], len(items)) if len(set(items)) == 1 else nbt.Tuple(items)
    if isinstance(spelled, list):
        dtype, ndim, layout, access = spelled
        return nbt.Array(_unspell(dtype), ndim, layout, readonly=access == "readonly")
    return from_dtype(np.dtype(spelled))


def _spell_traits(traits: Traits) -> dict[str, Any]:
    return {k: {"dtype": np.dtype(v).name} if isinstance(v, type) else v for k, v in traits.items()}


def _unspell_traits(spelled: dict[str, Any]) -> Traits:
    def value(v: Any) -> Any:
        if isinstance(v, dict):
            return np.dtype(v["dtype"]).type
        return Dim3(*v) if isinstance(v, list) else v

    return Traits({k: value(v) for k, v in spelled.items()})


def _signature(kernel: Kernel, signature: Any) -> tuple[nbt.Type, ...]:
    valid = "signature must be like 'void(complex64[:,::1], int64)', a tuple of numba types, or example arguments"
    given: Any = tuple(map(_type_of, signature)) if isinstance(signature, tuple | list) else signature
    try:
        args, returned = sigutils.normalize_signature(given)
    except Exception as e:
        raise ArgumentError(f"{valid}; got {signature!r}: {e}") from None
    if returned not in (None, nbt.void):
        raise ArgumentError(f"a kernel returns nothing, got a signature that returns {returned}")
    if len(args) != len(kernel.parameters):
        raise ArgumentError(
            f"{kernel.py_func.__name__} takes {len(kernel.parameters)} arguments ({', '.join(kernel.parameters)}), the signature has {len(args)}"
        )
    return tuple(args)


def _type_of(item: Any) -> Any:
    """The type of one argument of a signature: a numba type itself, its text, or an example's."""
    if isinstance(item, nbt.Type):
        return item
    if isinstance(item, str):
        try:
            return sigutils.normalize_signature(f"void({item})")[0][0]
        except Exception:
            return item  # refused with the whole signature
    looked = arguments.look_at(item)
    return item if looked is None else looked.type


def compile(kernel: Kernel, signature: Any, arch: Any = None) -> CompiledKernel:
    """Compile a kernel ahead of time; needs no GPU where *arch* is given.

    Parameters
    ----------
    kernel : what ``@devmath.kernel`` made.
    signature : ``"void(complex64[:,::1], int64)"``, a tuple of numba types, or a tuple of example arguments.
    arch : ``"sm_90a"``, or several: ``["sm_80", "sm_90a", "sm_100a"]``; the current device where it is left out.
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(f"compile takes a kernel made by @devmath.kernel, got {kernel!r}")
    types = _signature(kernel, signature)
    if arch is None:
        current = _arch.current()
        if current is None:
            raise ValueError("no CUDA device was found: name an architecture, such as arch='sm_90a'")
        archs = [current]
    else:
        several = isinstance(arch, list | set | frozenset) or isinstance(arch, tuple) and not (arch and isinstance(arch[0], int))
        archs = list(dict.fromkeys(_arch.parse(a) for a in (arch if several else [arch])))
        if not archs:
            raise ValueError("arch must name at least one architecture, such as 'sm_90a'")
    linked = [kernel.linked(types, a) for a in archs]
    images = [Image(k.arch, k.name, k.cubin) for k in linked]
    return CompiledKernel(kernel.py_func.__name__, kernel.parameters, types, images, linked[0].plans)


def load(path: str | Path | bytes) -> CompiledKernel:
    """A kernel that :meth:`CompiledKernel.save` wrote; nothing is compiled. Raises :class:`ArtifactError` for a damaged file."""
    data = path if isinstance(path, bytes) else Path(path).read_bytes()
    what = "the bytes" if isinstance(path, bytes) else str(path)
    if len(data) < _HEAD.size + 32 or data[: len(_MAGIC)] != _MAGIC:
        raise ArtifactError(f"{what} is not a saved devmath kernel")
    _, version, length = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise ArtifactError(f"{what} was saved in format {version}, this devmath reads format {_VERSION}; compile the kernel again")
    if hashlib.sha256(data[:-32]).digest() != data[-32:]:
        raise ArtifactError(f"{what} is damaged; compile the kernel again")
    try:
        return _read(json.loads(data[_HEAD.size : _HEAD.size + length]), data[_HEAD.size + length : -32])
    except Exception as e:
        raise ArtifactError(f"{what} was saved by another devmath and holds what this one does not know ({e}); compile the kernel again") from None


def _read(header: dict[str, Any], code: bytes) -> CompiledKernel:
    plans = tuple((from_json(p), bool(c)) for p, c in header["plans"])
    at, images = 0, []
    for i in header["images"]:
        images.append(Image(_arch.parse(i["arch"]), i["name"], code[at : at + i["bytes"]]))
        at += i["bytes"]
        for (plan, _), traits in zip(plans, i["traits"], strict=True):
            plan._memo[images[-1].arch] = _unspell_traits(traits)
    return CompiledKernel(header["name"], header["parameters"], tuple(map(_unspell, header["signature"])), images, plans)
