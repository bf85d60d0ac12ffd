"""What can go wrong, in the user's words.

Bad values raise :class:`ValueError`, bad types :class:`TypeError`, as everywhere in Python; the classes
here are their subclasses (or of :class:`RuntimeError` / :class:`ImportError` where the machine is at fault), so that a caller may catch
either the ordinary exception or ``DevmathError``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DevmathError(Exception):
    """Base of every error that devmath raises on purpose."""


class PlanError(DevmathError, ValueError):
    """A plan was asked for that no library can build."""


class ArchError(DevmathError, ValueError):
    """An architecture was named that devmath does not know."""


class KernelTypeError(DevmathError, TypeError):
    """A device function was handed something of the wrong type inside a kernel."""


class KernelValueError(DevmathError, ValueError):
    """A device function was handed a value inside a kernel that does not fit its plan."""


class LaunchError(DevmathError, ValueError):
    """A launch does not fit its kernel or its device."""


class ArgumentError(DevmathError, TypeError):
    """A kernel was called with arguments of the wrong kind or number."""


class TargetError(DevmathError, NotImplementedError):
    """Something in the kernel does not exist on the target it was to run on."""


class CodegenError(DevmathError, RuntimeError):
    """A compiler or linker refused; the message carries its own words."""


class VersionError(DevmathError, RuntimeError):
    """Two installed parts do not fit together; the message names both versions and the mend."""


class MissingDependency(DevmathError, ImportError):
    """A part of devmath needs a package that is not installed."""


class ArtifactError(DevmathError, ValueError):
    """A saved kernel is damaged or is not one."""


class TuningError(DevmathError, RuntimeError):
    """Knobs cannot be measured here, or what was measured cannot be read."""


def one_of(what: str, got: object, valid: Iterable[object]) -> str:
    """``what must be one of a, b, c, got x``, with the nearest choice when *got* looks like a slip of the pen."""
    choices = list(valid)
    text = f"{what} must be one of {', '.join(map(repr, choices))}, got {got!r}"
    if isinstance(got, str):
        near = difflib.get_close_matches(got, [c for c in choices if isinstance(c, str)], n=1)
        if near:
            text += f" (did you mean {near[0]!r}?)"
    return text


def need_gpu_packages(what: str, cause: BaseException | None = None) -> MissingDependency:
    """The one line of advice for a machine without the device packages."""
    reason = f" ({cause})" if cause is not None else ""
    return MissingDependency(f"{what} needs the device packages{reason}: pip install 'devmath[cu13]'")
