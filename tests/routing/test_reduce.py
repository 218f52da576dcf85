"""reduce: all layers of all ranks in one collective, exactly."""

from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from equipoise import Tally, reduce
from tests.ranks import on_ranks

LARGEST = (2**31 - 1) // 2  # what two ranks may count each


def tally(loads, step=0, **parts):
    loads = torch.tensor(loads)
    return Tally(
        loads,
        loads.unsqueeze(0),
        torch.tensor(step),
        {name: torch.tensor(p) for name, p in parts.items()},
    )


def layers_of(rank):
    """Two layers of different E, parts and step; the first ran two forwards. Ranks order parts
    differently.
    """
    parts = {"pairs": [[1, 10], [100, 1000 * rank]], "above": [7]}
    wide = tally([1, 2, 3, 4 + rank], 5, **dict(sorted(parts.items(), reverse=rank == 1)))
    return {"wide": wide + wide, "narrow": tally([10**rank, 10**9], 9)}


def plain(layer):
    return {"loads": layer.loads, "forwards": layer.forwards, "step": layer.step, **layer.parts}


def listed(layer):
    return {name: count.tolist() for name, count in plain(layer).items()}


def refusal(layer):
    try:
        reduce(layer)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def see(rank, folder):
    """What one of two ranks sees, saved for the tests below."""
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as collective:
        summed = reduce(layers_of(rank))
    seen = {
        "collectives": collective.call_count,
        "summed": {name: plain(layer) for name, layer in summed.items()},
        "forwards": plain(reduce(layers_of(rank)["wide"], forwards=True)),
        "alone": plain(reduce(layers_of(rank)["wide"], alone)),
        "steps": refusal(tally([1, 2], step=3 + 2 * rank)),
        "largest": plain(reduce(tally([LARGEST]))),
        "overflow": refusal(tally([LARGEST + rank])),  # too many on one of them only
    }
    torch.save(seen, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    on_ranks(partial(see, folder=folder), 2, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture
def group_of_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_lone_process_changes_nothing():
    one, other = tally([1, 2]), tally([3])
    assert reduce(one) is one
    named, many = reduce({"a": one, "b": other}), reduce([one, other])
    assert list(named) == ["a", "b"]
    assert named["a"] is many[0] is one
    assert named["b"] is many[1] is other


@pytest.mark.usefixtures("group_of_one")
def test_answer_has_questions_form():
    layers = layers_of(1)
    one, many, named = reduce(layers["wide"]), reduce(list(layers.values())), reduce(layers)
    assert list(named) == ["wide", "narrow"]
    for answer in (one, many[0], named["wide"]):
        assert listed(answer) == listed(layers["wide"])
    assert listed(many[1]) == listed(named["narrow"]) == listed(layers["narrow"])
    assert reduce([]) == []
    assert reduce({}) == {}


@pytest.mark.usefixtures("group_of_one")
def test_counts_travel_as_int32():
    with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as collective:
        assert reduce(tally([2**31 - 1])).loads.tolist() == [2**31 - 1]
        assert collective.call_args.args[0].dtype == torch.int32
        with pytest.raises(
            OverflowError, match="a count does not fit int32 over 1 ranks: update more often"
        ):
            reduce([tally([1]), tally([1, 2**31])])


@pytest.mark.usefixtures("group_of_one")
def test_steps_of_a_long_training_fit():
    """A step travels with its square, which of ten million would not fit an int32."""
    assert reduce(tally([1], step=10**7)).step == 10**7


@pytest.mark.usefixtures("group_of_one")
def test_mixed_devices_are_refused():
    with pytest.raises(ValueError, match=r"on one device, not on \['cpu', 'meta'\]"):
        reduce([tally([1]), tally([1]).to("meta")])


def test_ranks_sum_exactly(ranks):
    for seen in ranks:
        wide, narrow = seen["summed"]["wide"], seen["summed"]["narrow"]
        assert wide["loads"].tolist() == [4, 8, 12, 18]
        assert wide["pairs"].tolist() == [[4, 40], [400, 2000]]
        assert wide["above"].tolist() == [28]
        assert narrow["loads"].tolist() == [11, 2 * 10**9]
        assert (wide["step"], narrow["step"]) == (5, 9)
        assert wide["loads"].dtype == torch.int64


def test_layers_share_one_collective(ranks):
    assert [seen["collectives"] for seen in ranks] == [1, 1]


def test_forwards_stay_own(ranks):
    for rank, seen in enumerate(ranks):
        assert seen["summed"]["wide"]["forwards"].tolist() == [[1, 2, 3, 4 + rank]] * 2


def test_forwards_sum_when_asked(ranks):
    for seen in ranks:
        assert seen["forwards"]["forwards"].tolist() == [[2, 4, 6, 9]] * 2
        assert seen["forwards"]["loads"].tolist() == [4, 8, 12, 18]
        assert seen["forwards"]["pairs"].tolist() == [[4, 40], [400, 2000]]


def test_group_limits_the_sum(ranks):
    for rank, seen in enumerate(ranks):
        assert seen["alone"]["loads"].tolist() == [2, 4, 6, 8 + 2 * rank]


def test_different_steps_are_refused(ranks):
    for rank, seen in enumerate(ranks):
        assert seen["steps"].startswith(
            "ValueError: the ranks' balancers have made different numbers of updates"
        )
        assert f"(this rank's {3 + 2 * rank}): did a rank skip an update()" in seen["steps"]


def test_overflow_counts_all_ranks(ranks):
    for seen in ranks:
        assert seen["largest"]["loads"].tolist() == [2 * LARGEST]
        # on both
        assert seen["overflow"].startswith("OverflowError: a count does not fit int32 over 2 ranks")
