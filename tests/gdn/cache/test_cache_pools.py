"""Free lists, pages and the tensors of the pools."""

import pytest
import torch

from gpu_runner.gdn.cache.errors import PoolMisuseError
from gpu_runner.gdn.cache.pools import FreeList, PagedRows, Pools, PoolShape, slot_allocator

SHAPE = PoolShape(
    full_layers=1, gdn_layers=2, kv_heads=2, head_dim=4, conv_dim=6, value_heads=2, value_dim=3, key_dim=5
)


def test_slot_zero_is_never_handed_out():
    slots = slot_allocator(3)
    assert {slots.take() for _ in range(3)} == {1, 2, 3}
    assert slots.take() is None


def test_the_newest_free_number_is_reused_first():
    numbers = FreeList(4)
    first, second = numbers.take(), numbers.take()
    numbers.give_back(first)
    numbers.give_back(second)
    assert numbers.take() == second


@pytest.mark.parametrize(("number", "message"), [(2, "freed twice"), (9, "hands out 1 to 3")])
def test_only_an_owner_gives_back(number, message):
    with pytest.raises(PoolMisuseError, match=message):
        slot_allocator(3).give_back(number)


def test_rows_come_in_pages_and_go_in_pages():
    rows = PagedRows(12, page_size=4)
    mine: list[int] = []
    assert rows.extend(mine, 5)
    assert (len(mine), rows.available(), rows.needed(5, 8), rows.needed(5, 9)) == (5, 4, 0, 4)
    assert mine[:4] == list(range(mine[0], mine[0] + 4))
    before = list(mine)
    assert not rows.extend(mine, 13)
    assert mine == before
    rows.release(mine)
    assert rows.available() == 12
    with pytest.raises(PoolMisuseError, match="choose a multiple"):
        PagedRows(10, page_size=4)


def test_copies_reach_every_layer_and_no_other_slot():
    pools = Pools.allocate(SHAPE, rows=8, slots=3, dtype=torch.bfloat16)
    assert pools.temporal.shape == (2, 4, 2, 3, 5)
    assert (pools.temporal.dtype, pools.conv.dtype) == (torch.float32, torch.bfloat16)
    pools.temporal.normal_()
    pools.conv.normal_()
    before = pools.temporal.clone()
    pools.copy_states([(1, 3)])
    assert torch.equal(pools.temporal[:, 3], before[:, 1])
    assert torch.equal(pools.conv[:, 3], pools.conv[:, 1])
    assert torch.equal(pools.temporal[:, 2], before[:, 2])
    pools.copy_states([])
    assert torch.equal(pools.temporal[:, 2], before[:, 2])
