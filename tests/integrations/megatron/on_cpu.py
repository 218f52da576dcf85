"""megatron-core without a GPU: what it wants of CUDA, given on the CPU, for tests alone.

Its router makes buffers on torch.cuda.current_device(), its dispatcher makes a stream and asks for
the current one, its checkpoint saves the state of CUDA's generator, and its random numbers are
forked from a tracker of CUDA states. None of it changes what a router chooses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

HIDDEN, EXPERTS, TOP_K = 16, 8, 2


class NoStream:
    """A stream that is always done, and equal to every other."""

    def __init__(self, *args, **kwargs):
        pass

    def __eq__(self, other):
        return True

    __hash__ = None

    def synchronize(self):
        pass

    def record_event(self, *args):
        return self

    wait_stream = wait_event = lambda self, *args: None


class NoTracker:
    """A tracker of random states that has none to switch."""

    def fork(self, name=None):
        return contextlib.nullcontext()

    def is_initialized(self):
        return True

    def add(self, *args):
        pass

    get_states = set_states = lambda self, *args: {}


def _as_on_host(tensor, as_numpy=False, record_stream=False):
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


@contextlib.contextmanager
def without_cuda():
    """Megatron's calls of CUDA answered by the CPU."""
    with contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        # jit_fuser is torch.compile
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for name, value in {
            "current_device": lambda: torch.device("cpu"),
            "current_stream": NoStream,
            "Stream": NoStream,
            "stream": lambda stream: contextlib.nullcontext(),
            "get_rng_state": torch.get_rng_state,
            "synchronize": lambda *args: None,
        }.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        from megatron.core.tensor_parallel import random as states

        for name in ("_get_cuda_rng_state", "_set_cuda_rng_state"):
            if hasattr(states, name):
                stack.enter_context(
                    mock.patch.object(states, name, return_value=torch.get_rng_state())
                )
        stack.enter_context(mock.patch.object(states, "_CUDA_RNG_STATE_TRACKER", NoTracker()))
        # sizes of an all-to-all are numbers on a GPU's host, and stay tensors on the CPU
        from megatron.core.transformer.moe import token_dispatcher

        if hasattr(token_dispatcher, "maybe_move_tensor_to_cpu"):
            stack.enter_context(
                mock.patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", _as_on_host)
            )
        # 0.16 names it where TransformerEngine is missing too
        from megatron.core.transformer.moe import moe_utils

        if not hasattr(moe_utils, "te_general_gemm"):
            stack.enter_context(mock.patch.object(moe_utils, "te_general_gemm", None, create=True))
        stack.enter_context(mock.patch.object(states, "initialize_rng_tracker", return_value=None))
        yield


@contextlib.contextmanager
def parallel(tensor=1, expert=1, expert_tensor=None):
    """Megatron's process groups on the ranks there are, or on a group of this one process."""
    from megatron.core import parallel_state

    alone = not dist.is_initialized()
    if alone:
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor,
        expert_model_parallel_size=expert,
        expert_tensor_parallel_size=expert_tensor,
    )
    try:
        with without_cuda():
            yield
    finally:
        parallel_state.destroy_model_parallel()
        if alone:
            dist.destroy_process_group()


def config(**settings):
    from megatron.core.transformer.transformer_config import TransformerConfig

    given = {
        "num_layers": 2,
        "hidden_size": HIDDEN,
        "num_attention_heads": 4,
        "num_moe_experts": EXPERTS,
        "moe_router_topk": TOP_K,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_token_dispatcher_type": "alltoall",
        "moe_ffn_hidden_size": 16,
        "ffn_hidden_size": 16,
        "use_cpu_initialization": True,
        "add_bias_linear": False,
        "bias_activation_fusion": False,
        "gradient_accumulation_fusion": False,
    } | settings
    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    assert given.keys() <= known, given.keys() - known
    return TransformerConfig(**given)


def groups_of_router():
    """The argument by which this release's router is given its process groups."""
    from megatron.core.transformer.moe import moe_utils, router

    names = inspect.signature(router.TopKRouter.__init__).parameters
    for name in ("pg_collection", "model_comm_pgs"):
        if name in names:
            default = (
                getattr(moe_utils, "get_default_pg_collection", None)
                or moe_utils.get_default_model_comm_pgs
            )
            return {name: default()}
    return {}


def submodules(builder=None):
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLPSubmodules
    from megatron.core.transformer.moe.experts import SequentialMLP
    from megatron.core.transformer.moe.moe_layer import MoESubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec

    linear = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    given = {"experts": ModuleSpec(module=SequentialMLP, submodules=linear)}
    return MoESubmodules(**given | ({} if builder is None else {"router": builder}))


class Model(nn.Module):
    """Two of Megatron's MoE layers, with the little that finalize_model_grads wants of a model."""

    def __init__(self, config, builder=None, specs=None):
        super().__init__()
        from megatron.core.transformer.moe.moe_layer import MoELayer

        self.config = config
        self.layers = nn.ModuleList()
        for number in (1, 2):
            layer = MoELayer(config, submodules(builder))
            layer.set_layer_number(number)
            self.layers.append(layer)

    def forward(self, hidden, **more):
        for layer in self.layers:
            hidden = hidden + layer(hidden, **more)[0]
        return hidden

    @property
    def routers(self):
        return [layer.router for layer in self.layers]

    def finish_grad_sync(self, **more):
        if dist.get_world_size() > 1:
            for weight in self.parameters():
                if weight.grad is not None and getattr(weight, "allreduce", True):
                    dist.all_reduce(weight.grad)


def release_is(least):
    """Whether this megatron-core is of this release or a later one."""
    import megatron.core

    def parts(version):
        return [int(part) for part in version.split("rc")[0].split(".")[:3]]

    return parts(megatron.core.__version__) >= parts(least)


def empty_tracker():
    """Empty what Megatron keeps for its logs; the answer reads it: values (layers,) by name."""
    if release_is("0.18"):
        from megatron.core.transformer.moe.moe_logging import get_moe_metrics_tracker

        entries = get_moe_metrics_tracker()._metrics
        entries.clear()
        return lambda: {name: entry.values for name, entry in entries.items()}
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import moe_utils

    name = "get_moe_layer_wise_logging_tracker"
    read = getattr(moe_utils if hasattr(moe_utils, name) else parallel_state, name)
    read().clear()
    return lambda: {name: entry["values"] for name, entry in read().items()}
