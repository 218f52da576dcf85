"""Functions that torch.compile leaves as they are, without loading the compiler for that.

`torch.compiler.disable` imports torch._dynamo where the function is defined: seconds, on every
import of equipoise.layers. Here it is imported once somebody compiles; until then there is no
compiler that would have to be kept away.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch._compile import _disable_dynamo

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def leave_uncompiled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`torch.compiler.disable`, which costs nothing while nobody compiles."""
    kept_out = _disable_dynamo(function)

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        # the tracer knows the answer to the first question, and never asks the second
        if torch.compiler.is_compiling() or "torch._dynamo" in sys.modules:
            return kept_out(*args, **kwargs)
        return function(*args, **kwargs)

    return run
