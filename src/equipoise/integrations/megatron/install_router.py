"""Our router where megatron-core builds its own.

    submodules = MoESubmodules(experts=..., router=router("curvature"))         # 0.16 and later

    with install_router("curvature"):                                           # any release
        model = GPTModel(...)

Releases before 0.16 construct TopKRouter by name in MoELayer; later ones take a builder, which the
ready-made layer specs leave at TopKRouter. The second way serves both.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from equipoise.attach.making import Maker
from equipoise.integrations.megatron.stepping import hook_finalize
from equipoise.integrations.megatron.topk_router import BalancedRouting, balanced_class
from equipoise.storage.optional import import_optional

_MOE_LAYER = "megatron.core.transformer.moe.moe_layer"
_ROUTER = "megatron.core.transformer.moe.router"


def router(
    balancer: Maker = "curvature", *, step_in_finalize: bool = True, **options: object
) -> RouterBuilder:
    """A builder for `MoESubmodules(router=...)`: Megatron's TopKRouter, balanced by one of ours.

    Args:
        balancer: a name of `equipoise.balancers()` that has a shift, or a function of (num_experts,
            top_k) that makes one.
        step_in_finalize: update in Megatron's finalize_model_grads. False for a training loop that
            does without it: then call `router_step(model)` after every global batch.
        **options: of the balancer (`update_rate=1e-3`, `target=[...]`).

    Example:
        >>> MoESubmodules(experts=..., router=router("quantile"))  # doctest: +SKIP
    """
    if step_in_finalize:
        hook_finalize()
    return RouterBuilder(balancer, options)


@dataclasses.dataclass(frozen=True)
class RouterBuilder:
    """What Megatron calls with config and process groups, in each release with others."""

    balancer: Maker
    options: dict[str, object]

    def __call__(self, config: Any, **more: Any) -> BalancedRouting:
        base = _topk_router_class()
        return _balanced_class(base)(
            config=config, balancer=self.balancer, options=self.options, **more
        )


_balanced_class = functools.cache(balanced_class)


def install_router(
    balancer: Maker = "curvature", *, step_in_finalize: bool = True, **options: object
) -> InstalledRouter:
    """Build every MoE layer with our router from now on, whatever spec it is built from.

    Use it as a context around the construction of the model, or call `remove()` after it. Arguments
    are those of `router`.
    """
    return InstalledRouter(router(balancer, step_in_finalize=step_in_finalize, **options))


class InstalledRouter:
    """Our router in MoELayer's constructor. Models keep theirs after `remove()`."""

    def __init__(self, builder: RouterBuilder) -> None:
        self._module = _moe_layer_module()
        self._topk_router = _topk_router_class()
        self._own_init: Callable[..., None] | None = None
        if isinstance(self._module.TopKRouter, RouterBuilder) or hasattr(
            self._module.MoELayer.__init__, "__wrapped__"
        ):
            raise ValueError(
                "a router of equipoise's is installed in megatron-core already: call remove() on "
                "it first"
            )
        if "router" in self._module.MoESubmodules.__dataclass_fields__:
            self._own_init = self._module.MoELayer.__init__
            self._module.MoELayer.__init__ = self._with_builder(builder)
        else:
            self._module.TopKRouter = builder

    def remove(self) -> None:
        """Let Megatron build its own routers again."""
        if self._own_init is None:
            self._module.TopKRouter = self._topk_router
        else:
            self._module.MoELayer.__init__ = self._own_init

    def __enter__(self) -> InstalledRouter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def _with_builder(self, builder: RouterBuilder) -> Callable[..., None]:
        """MoELayer's constructor, given our builder where the spec names TopKRouter."""
        own = self._module.MoELayer.__init__

        @functools.wraps(own)
        def construct(layer: Any, config: Any, submodules: Any = None, *a: Any, **kw: Any) -> None:
            if submodules is not None and submodules.router is self._topk_router:
                submodules = dataclasses.replace(submodules, router=builder)
            own(layer, config, submodules, *a, **kw)

        return construct


def _topk_router_class() -> type:
    module: Any = import_optional(_ROUTER, extra="megatron")
    return module.TopKRouter


def _moe_layer_module() -> Any:
    return import_optional(_MOE_LAYER, extra="megatron")
