"""Each part alone."""

import pytest
import torch

from equipoise.balancing.shift import step_sizes
from equipoise.balancing.shift.parts import EMA, AdaGrad, Center, Clip, Momentum, Scale, Sign, Tanh

STEP = torch.tensor([3.0, 0.0, -1.0, -2.0])
ONE = torch.tensor(1.0)


def run(part, *steps):
    part.build(4)
    return [part(step, torch.tensor(float(n))) for n, step in enumerate(steps, 1)]


def test_sign_of_zero_is_zero():
    assert run(Sign(), STEP)[0].tolist() == [1, 0, -1, -1]


def test_center_sums_to_zero():
    assert run(Center(), STEP + 5)[0].tolist() == STEP.tolist()


def test_clip_bounds_each_coordinate():
    assert run(Clip(1.5), STEP)[0].tolist() == [1.5, 0, -1, -1.5]


def test_tanh_saturates():
    small, large = run(Tanh(2.0), STEP * 1e-3, STEP * 1e3)
    torch.testing.assert_close(small, STEP * 2e-3, rtol=1e-4, atol=0)
    assert large.tolist() == [1, 0, -1, -1]


def test_scale_takes_a_step_size():
    first, second, third = run(Scale(step_sizes.inverse_steps(6.0)), STEP, STEP, STEP)
    assert torch.equal(first, STEP * 6)
    assert torch.equal(second, STEP * 3)
    assert torch.equal(third, STEP * 2)


def test_inverse_sqrt_at_four():
    assert step_sizes.inverse_sqrt_steps(3.0)(torch.tensor(4.0)) == 1.5


def test_ema_averages():
    first, second = run(EMA(0.75), STEP, torch.zeros(4))
    assert torch.equal(first, STEP / 4)
    assert torch.equal(second, STEP * 3 / 16)


def test_momentum_accumulates():
    first, second = run(Momentum(0.5), STEP, STEP)
    assert torch.equal(first, STEP)
    assert torch.equal(second, STEP * 1.5)


def test_earlier_steps_are_not_overwritten():
    first, second = run(Momentum(0.5), STEP, STEP)
    assert not torch.equal(first, second)


def test_adagrad_forgets_the_unit():
    here, there = run(AdaGrad(), STEP, -STEP), run(AdaGrad(), STEP * 1024, -STEP * 1024)
    assert torch.equal(here[0], STEP.sign())
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(here, there, strict=True))


def test_parts_with_memory_are_not_shared():
    part = EMA(0.5)
    part.build(4)
    with pytest.raises(ValueError, match="already belongs"):
        part.build(4)


@pytest.mark.parametrize(
    "make", [lambda: EMA(1.0), lambda: Momentum(-0.1), lambda: Clip(0.0), lambda: Tanh(-1.0)]
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()
