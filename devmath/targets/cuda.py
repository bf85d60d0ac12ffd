"""The GPU target: typing and lowering of plans for numba-cuda, and compiling kernels to cubins. Needs no GPU.

All code that touches llvmlite for numba-cuda is in this file.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

from numba import types as nbt

from .. import arch as _arch
from ..arch import Arch
from ..codegen import link, sources, versions
from ..errors import PlanError, need_gpu_packages
from ..functions import Array, DeviceFunction, Part, Values, View, required_length
from ..plan import BoundPlan, Plan
from . import rewrite
from .common import Build, PlanType, building, current_build, lower_constant, make_templates, meaning_of


def available() -> bool:
    """Whether numba-cuda is installed (numba's own, older ``cuda`` module is not enough)."""
    return versions.installed("numba-cuda") is not None


@functools.cache
def register() -> None:
    """Make numba-cuda know plans, in ``@cuda.jit`` kernels as well. Cheap; the rest waits until a plan is typed."""
    from numba.cuda.typing.typeof import typeof_impl

    @typeof_impl.register(BoundPlan)
    def _bound(value, c):
        _install()
        return PlanType(value.plan, value.target)

    @typeof_impl.register(Plan)
    def _plan(value, c):
        _install()
        return PlanType(value, _target_of_flags())


def _target_of_flags() -> Arch:
    """The architecture that numba-cuda is compiling for."""
    from numba.cuda.core.targetconfig import ConfigStack

    flags = ConfigStack.top_or_none()
    cc = getattr(flags, "compute_capability", None)
    if cc is not None:
        return _arch.native((int(cc[0]), int(cc[1])))
    current = _arch.current()
    if current is None:
        raise PlanError(
            "a plan can be compiled into a plain @cuda.jit kernel only where there is a GPU; use @devmath.kernel with devmath.compile(..., arch=...)"
        )
    return current


@functools.cache
def _install() -> None:
    from numba.cuda import cudadecl, cudaimpl
    from numba.cuda.datamodel.models import OpaqueModel
    from numba.cuda.descriptor import cuda_target
    from numba.cuda.extending import register_model
    from numba.cuda.typing import templates

    def lower(key: tuple, fn: DeviceFunction) -> None:
        cudaimpl.registry.lower(key, PlanType, nbt.VarArg(nbt.Any))(functools.partial(_lower_call, fn))
        cuda_target.target_context.install_registry(cudaimpl.registry)

    versions.check_numba_cuda()
    register_model(PlanType)(OpaqueModel)
    cudadecl.registry.register_attr(make_templates(templates, lower))
    cudaimpl.registry.lower_constant(PlanType)(lambda context, builder, ty, value: context.get_dummy_value())
    cudaimpl.registry.lower_getattr_generic(PlanType)(lower_constant)
    cuda_target.typing_context.refresh()
    cuda_target.target_context.refresh()


def _lower_call(fn: DeviceFunction, context, builder, sig, args):
    ty: PlanType = sig.args[0]
    build = current_build()
    if build is not None:
        build.note(ty.plan, fn)
    if isinstance(fn.returns, Array):
        return _allocate(fn.returns, context, builder, ty)
    if isinstance(fn.returns, Part):
        return _part(fn.returns, context, builder, ty, sig.return_type)
    if isinstance(fn.returns, View):
        return _view(context, builder, sig, args[1])
    source = fn.source(ty.plan, ty.traits)
    if source is None:
        for arg, arg_type, value in zip(fn.args, sig.args[1:], args[1:], strict=True):
            need = required_length(arg, ty.traits)
            if need is not None:
                _trap_unless_length(builder, context.make_array(arg_type)(context, builder, value).nitems, need)
        return _call_meaning(fn, context, builder, sig, args)
    _need(source, ty.target, context)
    return _call_symbol(fn, source.symbol, context, builder, sig, args)


def _need(source: sources.Source, target: Any, context) -> None:
    """Have the code of *source* linked."""
    build = current_build()
    if build is not None:
        build.sources[source] = None
    else:
        context.active_code_library.add_linking_file(_linkable(source, target))


#: What the meanings that call other plans noted when they were compiled, by numba-cuda's own key: it compiles a meaning once.
_noted: dict[Any, Build] = {}


def _call_meaning(fn: DeviceFunction, context, builder, sig, args):
    ty: PlanType = sig.args[0]
    meaning, inner = meaning_of(fn, ty), sig.replace(args=tuple(sig.args[1:]), recvr=None)
    with building(Build()) as noted:
        result = context.compile_internal(builder, meaning, inner, args[1:])
    key = (meaning.__code__, inner, tuple(c.cell_contents for c in meaning.__closure__ or ()))
    if noted.calls:
        _noted[key] = noted
    noted, build = _noted.get(key, noted), current_build()
    if build is not None:
        build.calls.update(noted.calls)
    for source in noted.sources:
        _need(source, ty.target, context)
    return result


def _allocate(spec: Array, context, builder, ty: PlanType):
    shared = spec.space == "shared"
    return _new_array(context, builder, spec.dtype(ty.plan), None if shared else spec.count(ty.traits))


def _new_array(context, builder, dtype, count: int | None):
    """A thread's own array of *count* elements; with ``None``, the block's dynamic shared memory."""
    from numba.cuda import cudaimpl
    from numba.cuda.cudadrv import nvvm

    shared = count is None
    return cudaimpl._generic_array(
        context,
        builder,
        shape=(0,) if shared else (count,),
        dtype=dtype,
        symbol_name=cudaimpl._get_unique_smem_id("_cudapy_smem") if shared else "_cudapy_lmem",
        addrspace=nvvm.ADDRSPACE_SHARED if shared else nvvm.ADDRSPACE_LOCAL,
        can_dynsized=shared,
        alignment=16,  # vectorised exchange in the generated code
    )


def _part(spec: Part, context, builder, ty: PlanType, array_type: nbt.Array):
    from numba.cuda.np import arrayobj

    flat = nbt.Array(array_type.dtype, 1, "C")
    memory = context.make_array(flat)(context, builder, _new_array(context, builder, flat.dtype, None))
    first = context.compile_internal(builder, spec.first(ty.plan, ty.traits), nbt.int64(), ())
    made = context.make_array(array_type)(context, builder)
    word, one = memory.nitems.type, flat.dtype.bitwidth // 8
    arrayobj.populate_array(
        made,
        data=builder.gep(memory.data, [first]),
        shape=[word(n) for n in spec.shape(ty.traits)],
        strides=[word(n * one) for n in spec.strides(ty.traits)],
        itemsize=word(one),
        meminfo=None,
    )
    return made._getvalue()


def _view(context, builder, sig, value):
    """A contiguous array's memory as elements of another type. (numba-cuda lets no function return an array that it did not take.)"""
    from numba.cuda.np import arrayobj

    old, new = sig.args[1], sig.return_type
    source, made = context.make_array(old)(context, builder, value), context.make_array(new)(context, builder)
    size, one = old.dtype.bitwidth // 8, new.dtype.bitwidth // 8
    count = builder.udiv(builder.mul(source.nitems, source.nitems.type(size)), source.nitems.type(one))
    pointer = context.get_value_type(new.dtype).as_pointer(source.data.type.addrspace)
    arrayobj.populate_array(
        made, data=builder.bitcast(source.data, pointer), shape=[count], strides=[count.type(one)], itemsize=count.type(one), meminfo=None
    )
    return made._getvalue()


def _call_symbol(fn: DeviceFunction, symbol: str, context, builder, sig, args):
    """Call a C function: results by pointer first, arrays by generic pointer, integers by value."""
    from llvmlite import ir
    from numba.cuda import cgutils

    ty: PlanType = sig.args[0]
    byte_pointer = ir.IntType(8).as_pointer()
    values, types = [], []
    out = None
    if isinstance(fn.returns, Values):
        out = cgutils.alloca_once(builder, context.get_value_type(fn.returns.dtype), size=fn.returns.count)
        values.append(builder.bitcast(out, byte_pointer))
        types.append(byte_pointer)
    for arg, arg_type, value in zip(fn.args, sig.args[1:], args[1:], strict=True):
        if isinstance(arg_type, nbt.Array):
            array = context.make_array(arg_type)(context, builder, value)
            need = required_length(arg, ty.traits)
            if need is not None:
                _trap_unless_length(builder, array.nitems, need)
            pointer = array.data
            if pointer.type.addrspace:
                pointer = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee))
            value = builder.bitcast(pointer, byte_pointer)
        values.append(value)
        types.append(value.type)
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), types), symbol)
    builder.call(function, values)
    if not isinstance(fn.returns, Values):
        return context.get_dummy_value()
    items = [builder.load(builder.gep(out, [ir.IntType(32)(i)])) for i in range(fn.returns.count)]
    return items[0] if len(items) == 1 else context.make_tuple(builder, sig.return_type, items)


def _trap_unless_length(builder, length, wanted: int) -> None:
    """Stop the kernel rather than write past a thread's array. Its length is nearly always a constant, and then nothing is left of this."""
    from llvmlite import ir
    from numba.cuda import cgutils

    wrong = builder.icmp_signed("<", length, ir.Constant(length.type, wanted))
    with builder.if_then(wrong, likely=False):
        builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.trap"), [])


def _linkable(source: sources.Source, target: Any):
    """LTO-IR that numba-cuda links itself, in a plain ``@cuda.jit`` kernel."""
    from numba import cuda

    (blob,) = sources.ltoir([source], target)
    return _linkables(source, target, cuda.LTOIR, blob)


@functools.lru_cache(maxsize=256)
def _linkables(source, target, ltoir, blob):
    # One object for each source, so that a kernel that calls a function twice links it once.
    return ltoir(blob.ltoir, name=blob.name)


class Compiled(NamedTuple):
    """A linked kernel and what was found out while it was compiled."""

    cubin: bytes
    name: str
    build: Build


class _ForArch(rewrite.Rewriter):
    """Binds plans to an architecture and gives device functions their own compiled forms: numba-cuda keeps one for all architectures."""

    def __init__(self, arch: Arch):
        super().__init__()
        self.arch = arch
        #: The generated code that the kernel will need, as far as its text says so.
        self.sources: dict[sources.Source, None] = {}

    def replace(self, value, attributes, where):
        if not isinstance(value, Plan):
            return value
        fn = value.functions.get(attributes[0]) if attributes else None
        source = fn.source(value, value.traits(self.arch)) if fn is not None and fn.code else None
        if source is not None:
            self.sources[source] = None
        return BoundPlan(value, self.arch)

    def device_function(self, dispatcher):
        from numba.cuda.dispatcher import CUDADispatcher

        from .check import check_registers

        # The memo must hold the copy before its body is read: it may call itself.
        copy = CUDADispatcher(dispatcher.py_func, dict(dispatcher.targetoptions))
        self._memo[id(dispatcher)] = (dispatcher, copy)
        copy.py_func = self.function(dispatcher.py_func)
        check_registers(copy.py_func)
        return copy


@contextlib.contextmanager
def _pretend_device(arch: Arch) -> Iterator[None]:
    """numba-cuda asks the current device which code to make of a device function; here the answer is the architecture that was asked for."""
    from numba.cuda import dispatcher

    class Device:
        compute_capability = arch.cc

    original = dispatcher.get_current_device
    dispatcher.get_current_device = Device
    try:
        yield
    finally:
        dispatcher.get_current_device = original


def compile_kernel(
    fn: Any,
    argtypes: tuple[nbt.Type, ...],
    arch: Arch,
    *,
    fastmath: bool = False,
    lineinfo: bool = False,
    max_registers: int | None = None,
    launch_bounds: Any = None,
) -> Compiled:
    """Compile the Python function of a kernel for *arch* and link it."""
    if not available():
        raise need_gpu_packages("compiling for the GPU")
    try:
        versions.check_numba_cuda()
        from numba.core.compiler_lock import global_compiler_lock
        from numba.cuda.compiler import compile_all
    except ImportError as e:
        raise need_gpu_packages("compiling for the GPU", e) from None
    from .check import check_registers

    register()
    with global_compiler_lock, building(Build()) as build, _pretend_device(arch):
        rewriter = _ForArch(arch)
        bound = rewriter.function(fn)
        check_registers(bound)
        generated = _generate(list(rewriter.sources), arch)
        codes, _ = compile_all(
            bound, nbt.void(*argtypes), device=False, abi="numba", output="ltoir", cc=arch.cc,
            fastmath=fastmath, lineinfo=lineinfo, launch_bounds=launch_bounds, debug=False, opt=True,
        )  # fmt: skip
    blobs = [_as_blob(fn.__name__, i, code) for i, code in enumerate(codes)]
    limit = min(max_registers or _ALL_REGISTERS, _registers_that_fit(build, arch))
    # An explicit limit of 255 is not the same as none: without one the assembler weighs registers against occupancy.
    others = generated.result() if set(build.sources) == set(rewriter.sources) else sources.ltoir(list(build.sources), arch)
    cubin = link.link([*blobs, *others], arch, max_registers=limit if limit < _ALL_REGISTERS else None)
    return Compiled(cubin, link.entry_name(cubin), build)


def _generate(wanted: list[sources.Source], arch: Arch) -> Future[list[sources.Blob]]:
    """Generate code beside numba's own work: most of a cold start is spent in NVRTC, which leaves Python's lock alone."""
    future: Future[list[sources.Blob]] = Future()

    def work() -> None:
        try:
            future.set_result(sources.ltoir(wanted, arch))
        except BaseException as e:
            future.set_exception(e)

    threading.Thread(target=work, name="devmath-codegen", daemon=True).start()
    return future


_ALL_REGISTERS = 255


def _registers_that_fit(build: Build, arch: Arch) -> int:
    """The most registers a thread may have for the largest block that a plan asks for to be launched at all."""
    threads = max((_threads(plan, arch) for plan, cooperative in build.plans() if cooperative), default=1)
    return min(_ALL_REGISTERS, _arch.REGISTERS_PER_BLOCK // threads // 8 * 8)


def _threads(plan: Plan, arch: Arch) -> int:
    block = plan.traits(arch).block_dim
    return -(-block.x * block.y * block.z // 32) * 32


def _as_blob(name: str, i: int, code: Any) -> sources.Blob:
    data = code if isinstance(code, bytes) else getattr(code, "data", None) or code.code
    return sources.Blob(f"{name}_{i}", data, nvvm_isa())


@functools.cache
def nvvm_isa() -> tuple[int, int]:
    """The LTO-IR version that libNVVM writes: its own CUDA version, which nvJitLink must not be older than."""
    text = versions.installed("nvidia-nvvm")
    return versions.parse(text)[:2] if text else link.version()  # type: ignore[return-value]
