"""Trainer: the model, its optimizer and its data; one step, one evaluation, and all the tensors
there are to save.

One step, over M micro-batches and R ranks:

    loss = mean over micro-batches of (cross entropy + penalty);   gradients are averaged over ranks
    clip, refuse what is not finite, optimizer.step()
    tallies: added over micro-batches, summed over ranks in one collective
    balancer.update(tally) in every MoE layer, after the optimizer's step and once

With look-ahead the update's tally is taken again, from kept router inputs under the new weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipoise.balancing import Balancer
from equipoise.layers import Sample
from equipoise.model import DeepSeekMoE, ModelOutput
from equipoise.results.run import LoadLevels, pick_levels
from equipoise.routing import Tally, metrics, reduce
from equipoise.training.config import Config, micro_batch_size
from equipoise.training.data.batches import (
    Batches,
    cut_windows,
    validation_batches,
    validation_windows,
)
from equipoise.training.data.corpus import Corpus
from equipoise.training.evaluation import (
    Validation,
    device_idle_share,
    loads_by_sequence,
    summarise_validation,
    target_weights,
)
from equipoise.training.lanes import Lanes, choose_lane_count
from equipoise.training.ranks import World, accumulate_gradients, full_value, parallelise_model
from equipoise.training.schedule import learning_rate
from equipoise.training.scores import watch_scores


@dataclass(frozen=True)
class LayerStep:
    """What a step did in one MoE layer. All on the CPU."""

    name: str
    loads: Tensor
    """(E,) over the whole batch"""
    shift: Tensor
    """(E,) that was added to the scores"""
    shift_after: Tensor
    """(E,) that will be"""
    levels: LoadLevels
    """how uneven the loads are"""
    idle_share: float | None
    """of DEVICES devices, over this rank's forwards; None where experts do not divide over them"""
    scores: Tensor | None = None
    """(T, E) of the first micro-batch of this rank, if they were asked for"""


@dataclass(frozen=True)
class TrainingStep:
    """What a step did. `number` counts from 1: it is how many steps have been made."""

    number: int
    loss: float
    penalty: float
    gradient_norm: float
    learning_rate: float
    layers: list[LayerStep]


class Trainer:
    """See the top of the file.

    Args:
        config: how to train.
        corpus: its tokens.
        world: this rank among the others, and its device.
    """

    def __init__(self, config: Config, corpus: Corpus, world: World) -> None:
        self.config, self.world, self.corpus = config, world, corpus
        torch.manual_seed(config.seed)
        lanes = choose_lane_count(config, world)
        net = DeepSeekMoE(
            config.model,
            balancer=config.make_balancer,
            look_ahead=-(-config.look_ahead // lanes),  # of each part of a forward
            recompute=config.recompute,
        )
        self.net = net.to(world.device)
        if config.compile:
            for block in self.net.blocks:
                block.compile()
        self.model = parallelise_model(self.net, world, config)
        self.lanes = Lanes(self.model, self.net, lanes)
        self.optimizer = _make_optimizer(self.net, config)
        self.batches = Batches(
            corpus.train,
            config.model.sequence_length,
            config.batch_size,
            config.seed,
            world.rank,
            world.ranks,
        )
        self._validation_windows()  # too short a split is an error now, not at the first evaluation
        self.micro_batch = micro_batch_size(config, world.ranks)
        self.balancers = {
            name: layer.router.balancer for name, layer in self.net.moe_layers.items()
        }
        # with look-ahead, updates follow the tally of a sample that is not in parts
        if lanes > 1 and not config.look_ahead:
            for each in self.balancers.values():
                each.fix_sampling_stride(self.micro_batch * config.model.sequence_length)
        self.sharded = world.ranks > 1 and config.parallel == "fsdp"

    def step(self, number: int, *, keep_scores: bool = False) -> TrainingStep:
        """Make step `number`, the first being 1."""
        rate = learning_rate(self.config, number - 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for model in self.lanes.models:
            model.train()
        try:
            outputs, scores = self._forward_backward(number, keep_scores)
        except ValueError as error:
            # such as scores that are not finite: the router knows of no step
            raise ValueError(f"in step {number} of the training: {error}") from error
        loss, penalty = self._mean_losses(outputs)
        norm = float(full_value(nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip)))
        _refuse_infinite(number, loss, norm, rate)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return TrainingStep(
            number, loss, penalty, norm, rate, self._update_balancers(outputs, scores)
        )

    @torch.no_grad()
    def evaluate(self) -> Validation:
        """The loss and the loads over the windows that validate; penalties are not part of it."""
        self.model.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        loads: list[Tensor] = []
        for tokens, targets, counts in self._validation_inputs():
            with self._autocast():
                output = self.model(tokens, targets)
            if counts:
                total += output.loss.double() * len(tokens)
                loads.append(
                    loads_by_sequence(output.routings, len(tokens), self.config.model.num_experts)
                )
        return summarise_validation(
            self.world.sum([float(total)])[0],
            self._gather_loads(loads),
            # a config has one target for all layers
            next((target_weights(each) for each in self.balancers.values()), None),
        )

    def _gather_loads(self, loads: list[Tensor]) -> Tensor:
        """(N, layers, E) of all windows in their order. A rank may have had none."""
        limit, world = len(self._validation_windows()), self.world
        whole_set = torch.zeros(
            limit,
            len(self.balancers),
            self.config.model.num_experts,
            dtype=torch.int64,
            device=world.device,
        )
        if loads:
            whole_set[world.rank :: world.ranks] = torch.cat(loads)
        return world.sum_counts(whole_set)

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint holds, as tensors that can be copied from and into.

        No step draws a random number, so one generator's state, the same on all ranks, stands for
        all.
        """
        found = {f"model.{name}": tensor for name, tensor in self.net.state_dict().items()}
        for name, weight in self.net.named_parameters():
            state = self.optimizer.state[weight]
            if not state:  # before the first step; these are AdamW's own first values
                state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
                state["exp_avg"], state["exp_avg_sq"] = (
                    torch.zeros_like(weight),
                    torch.zeros_like(weight),
                )
            found |= {f"optimizer.{name}.{key}": value.detach() for key, value in state.items()}
        return found | {"rng.cpu": torch.get_rng_state()}

    def restore_rng(self, tensors: dict[str, Tensor]) -> None:
        """Call it after a checkpoint was copied into `tensors()`: all but the generator's state is
        in place already.
        """
        torch.set_rng_state(tensors["rng.cpu"])

    def _forward_backward(
        self, number: int, keep_scores: bool
    ) -> tuple[list[ModelOutput], dict[str, Tensor]]:
        tokens, targets = (each.to(self.world.device) for each in self.batches[number - 1])
        pairs = list(
            zip(tokens.split(self.micro_batch), targets.split(self.micro_batch), strict=True)
        )
        outputs: list[ModelOutput] = []
        with watch_scores(*self.lanes.nets, wanted=keep_scores) as scores:
            for n, (some, wanted) in enumerate(pairs):
                with accumulate_gradients(self.model, more_to_come=n < len(pairs) - 1):
                    outputs.append(self.lanes.run(self._run_backward, some, wanted, 1 / len(pairs)))
        self.lanes.collect()
        return outputs, scores

    def _run_backward(
        self, model: nn.Module, tokens: Tensor, targets: Tensor, share: float
    ) -> ModelOutput:
        with self._autocast():
            output = model(tokens, targets)
        ((output.loss + output.penalty) * share).backward()
        return output._replace(loss=output.loss.detach(), penalty=output.penalty.detach())

    def _mean_losses(self, outputs: list[ModelOutput]) -> list[float]:
        """Loss and penalty over micro-batches and ranks."""
        each = torch.stack(
            [
                torch.stack((output.loss, output.penalty)).double()
                for output in outputs
                if output.loss is not None
            ]
        )
        return self.world.mean(each.mean(0).tolist())

    def _update_balancers(
        self, outputs: list[ModelOutput], scores: dict[str, Tensor]
    ) -> list[LayerStep]:
        tallies = reduce(
            {
                name: sum(
                    (output.tallies[n] for output in outputs[1:]), start=outputs[0].tallies[n]
                )
                for n, name in enumerate(self.balancers)
            }
        )
        before = {name: _shift(balancer) for name, balancer in self.balancers.items()}
        fresh = self._fresh_tallies(outputs) if self.config.look_ahead else tallies
        for name, balancer in self.balancers.items():
            balancer.update(fresh[name])
        return [
            self._describe_layer(name, tallies[name], before[name], scores.get(name))
            for name in self.balancers
        ]

    def _fresh_tallies(self, outputs: list[ModelOutput]) -> dict[str, Tally]:
        fresh = {}
        for n, (name, layer) in enumerate(self.net.moe_layers.items()):
            samples = [
                sample for output in outputs if isinstance(sample := output.samples[n], Sample)
            ]
            fresh[name] = layer.router.fresh_tally(sum(samples[1:], start=samples[0]))
        return reduce(fresh)

    def _describe_layer(
        self, name: str, tally: Tally, before: Tensor, scores: Tensor | None
    ) -> LayerStep:
        return LayerStep(
            name=name,
            loads=tally.loads.cpu(),
            shift=before,
            shift_after=_shift(self.balancers[name]),
            levels=pick_levels(metrics(tally.loads.cpu(), target_weights(self.balancers[name]))),
            idle_share=device_idle_share(tally.forwards),
            scores=scores,
        )

    def _validation_windows(self) -> list[int]:
        config = self.config
        return validation_windows(
            self.corpus.validation, config.model.sequence_length, config.validation_sequences
        )

    def _validation_inputs(self) -> Iterator[tuple[Tensor, Tensor, bool]]:
        """Inputs, targets, and whether they count. Under FSDP every forward is a collective, so
        all ranks must make equally many: a rank with fewer sequences evaluates the first one again,
        and does not count it.
        """
        world, tokens, S = self.world, self.corpus.validation, self.config.model.sequence_length
        number = self.config.validation_sequences
        mine = [
            (*pair, True)
            for pair in validation_batches(
                tokens, S, self.micro_batch, number, world.rank, world.ranks
            )
        ]
        most = -(
            -len(self._validation_windows()) // world.ranks
        )  # sequences of the rank that has most
        mine += [(*cut_windows(tokens, [0], S), False)] * (-(-most // self.micro_batch) - len(mine))
        for inputs, targets, counts in mine:
            yield inputs.to(world.device), targets.to(world.device), counts

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        device = self.world.device.type
        wanted = self.config.precision == "bfloat16"
        # a CPU has bfloat16 too, but many times slower than float32
        if self.config.precision == "auto":
            wanted = device == "cuda" and torch.cuda.is_bf16_supported()
        return torch.autocast(device, torch.bfloat16) if wanted else contextlib.nullcontext()


def _make_optimizer(net: DeepSeekMoE, config: Config) -> torch.optim.AdamW:
    """AdamW, where only matrices decay."""
    weights = list(net.parameters())
    groups = [
        {
            "params": [each for each in weights if each.dim() > 1],
            "weight_decay": config.weight_decay,
        },
        {"params": [each for each in weights if each.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True
    )


def _shift(balancer: Balancer) -> Tensor:
    """A copy on the CPU; zeros for methods that have none."""
    return balancer.shift_or_zeros.to("cpu", copy=True)


def _refuse_infinite(number: int, loss: float, norm: float, rate: float) -> None:
    for name, value in (("loss", loss), ("norm of the gradient", norm)):
        if not torch.isfinite(torch.tensor(value)):
            raise FloatingPointError(
                f"the {name} of step {number} is {value}: training stopped before the weights were "
                f"changed. Usual causes: a learning rate that is too high (it was {rate:.2g}), too "
                "little warm-up, or damaged data. --resume would make the same steps again, and "
                "ends here unless what failed was the machine: start in another --out with a lower "
                "--learning-rate or more --warmup-steps"
            )
