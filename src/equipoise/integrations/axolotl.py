"""axolotl: balance the model of a training that a YAML file describes.

    plugins:
      - equipoise.integrations.axolotl.BalancePlugin
    equipoise:                        # all of it may be left out
      balancer: curvature
      options: {}                     # of the balancer, such as update_rate
      skip: ["model.layers.0.*"]      # routers to leave alone
      trace: run/trace                # record every step
      settle: true                    # save the model with its settled shifts

axolotl validates the section as it does its own: an unknown key, balancer or option is refused
before anything is loaded. The model is balanced when its Trainer exists, since axolotl loads a
reference model in the same way, and before accelerate shards it.
"""

from __future__ import annotations

import importlib
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from equipoise.attach import Balancing, balance
from equipoise.balancing.spec import method_spec

_Base: Any
try:
    _Base = importlib.import_module("axolotl.integrations.base").BasePlugin
except ModuleNotFoundError as error:
    # without axolotl this module is only looked at: nobody loads the plugin
    if error.name != "axolotl":
        raise
    _Base = object


class BalanceOptions(BaseModel):
    """The section `equipoise` of a config."""

    model_config = ConfigDict(extra="forbid")

    balancer: str = Field(
        default="curvature", description="a method with a shift: equipoise.balancers()"
    )
    options: dict[str, Any] = Field(default={}, description="options of the balancer")
    skip: list[str] = Field(default=[], description="patterns of routers' names to leave alone")
    trace: str | None = Field(default=None, description="a folder to record every step in")
    trace_scores: int = Field(default=256, ge=0, description="tokens whose scores the trace keeps")
    settle: bool = Field(
        default=False, description="whether the trained model has its settled shifts"
    )

    @model_validator(mode="after")
    def check_balancer(self) -> BalanceOptions:
        """Make one of any size: `target` alone depends on it."""
        spec = method_spec(self.balancer)
        if spec.kind != "shift":
            raise ValueError(
                f"{self.balancer} has no shift, and a model's router can be given nothing else: "
                "choose curvature, deepseek, quantile ..."
            )
        without_target = {key: each for key, each in self.options.items() if key != "target"}
        try:
            spec.make(8, 2, **without_target)
        except TypeError as error:
            # pydantic reports ValueErrors with their place, and no others
            raise ValueError(str(error)) from None
        return self


class BalanceArgs(BaseModel):
    """What the plugin adds to axolotl's config."""

    equipoise: BalanceOptions = Field(default_factory=BalanceOptions)


class BalancePlugin(_Base):
    """Balances the experts of the model that axolotl trains."""

    def __init__(self) -> None:
        super().__init__()
        self.balancing: Balancing | None = None
        """of the model in training"""

    def get_input_args(self) -> str:
        return f"{__name__}.{BalanceArgs.__name__}"

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[Any]:
        """Balance the Trainer's model, and step with its optimizer."""
        chosen = _read_options(cfg)
        if self.balancing is not None:
            # an earlier training of the same process
            self.balancing.detach()
        self.balancing = balance(
            trainer.model,
            chosen.balancer,
            skip=chosen.skip,
            trace=chosen.trace,
            trace_scores=chosen.trace_scores,
            **chosen.options,
        )
        return [self.balancing.callback()]

    def post_train(self, cfg: Any, model: Any) -> None:
        """Axolotl saves the model after this."""
        if self.balancing is not None and _read_options(cfg).settle:
            self.balancing.settle()


def _read_options(cfg: Any) -> BalanceOptions:
    section = cfg.equipoise
    if section is None:
        return BalanceOptions()
    return BalanceOptions.model_validate(section.to_dict())
