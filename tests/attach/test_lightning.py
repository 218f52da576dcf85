"""Lightning: the callback steps after the optimizer; its state is in Lightning's checkpoints."""

import warnings

import pytest
import torch

import equipoise
from equipoise.attach.state.sidecar import balancer_state, restore_state
from tests.attach.test_trainer import Text
from tests.attach.tools import batch, forward, shift_of, tiny

lightning = pytest.importorskip("lightning.pytorch")


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = tiny("deepseek_v3")

    def training_step(self, batch, place):
        return self.model(**batch, use_cache=False).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)


def fit(module, balancing, folder, steps, checkpoint=None):
    torch.manual_seed(0)
    run = lightning.Trainer(
        max_steps=steps,
        accumulate_grad_batches=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        callbacks=[balancing.lightning_callback()],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = torch.utils.data.DataLoader(Text(), batch_size=2)
        run.fit(
            module, loader, ckpt_path=checkpoint, **({"weights_only": False} if checkpoint else {})
        )
    return run


def test_lightning_steps_and_resumes(tmp_path):
    whole = Module()
    balancing = equipoise.balance(whole, "smebu")
    run = fit(whole, balancing, tmp_path, steps=3)
    measured = balancing.metrics(loads=True)
    assert measured["step"] == 3
    assert {sum(loads) for loads in measured["loads"].values()} == {2 * 2 * 8 * 2}
    assert run.callback_metrics["balance/imbalance"] == pytest.approx(measured["imbalance"])
    run.save_checkpoint(tmp_path / "three.ckpt")
    other = Module()
    resumed = equipoise.balance(other, "smebu")
    fit(other, resumed, tmp_path, steps=5, checkpoint=str(tmp_path / "three.ckpt"))
    assert resumed.metrics()["step"] == 5
    assert not torch.equal(shift_of(resumed), shift_of(balancing))
    assert int(resumed.routers[0].balancer.steps) == 5


def test_a_sidecar_of_fabric_fits_the_bare_model(tmp_path):
    """Fabric puts `_forward_module.` before every name."""
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    model = tiny("deepseek_v3")
    wrapped = fabric.setup_module(model)
    balancing = equipoise.balance(wrapped, update_rate=0.5)
    forward(wrapped, batch()).backward()
    balancing.step()
    balancing.save(tmp_path)
    assert balancing.routers[0].name == "model.layers.1.mlp"
    bare = equipoise.balance(tiny("deepseek_v3")).load(tmp_path)
    assert torch.equal(shift_of(bare), shift_of(balancing))


def test_a_sidecar_that_fabric_named_is_read():
    balancing = equipoise.balance(tiny("deepseek_v3"))
    named = {f"_forward_module.{key}": value for key, value in balancer_state(balancing).items()}
    named = {key: value.clone() for key, value in named.items()}
    restore_state(balancing, named, source="an older file")
    assert balancing.loaded
