"""The prefix tree: states, splits, tombstones, locks, the two LRU lists."""

import pytest

from gpu_runner.gdn.cache.errors import CacheError
from gpu_runner.gdn.cache.radix import RadixTree


class Freed:
    def __init__(self, page_size=1):
        self.rows: list[int] = []
        self.slots: list[int] = []
        self.tree = RadixTree(
            page_size=page_size, checkpoint_grid=64, free_rows=self.rows.extend, free_slot=self.slots.append
        )


def key(length, last=None):
    tokens = list(range(length))
    return tokens if last is None else [*tokens[:-1], last]


@pytest.fixture
def freed():
    return Freed()


def test_a_match_ends_at_the_deepest_state(freed):
    tree = freed.tree
    tree.insert(key(64), key(64), 1)
    tree.insert(key(192), key(192), 2)
    assert tree.match(key(191)).length == 64
    found = tree.match(key(400))
    assert (found.length, found.node.state, found.rows, found.branching) == (192, 2, key(192), None)
    assert tree.match([9, 9]).node is tree.root


def test_a_split_leaves_the_state_on_the_child(freed):
    tree = freed.tree
    tree.insert(key(128), key(128), 1)
    other = [*key(70), *[500 + i for i in range(58)]]
    inserted = tree.insert(other, other, 2)
    assert (inserted.known, inserted.took_state) == (70, True)
    assert {slot: node.depth() for slot, node in tree.states().items()} == {1: 128, 2: 128}
    upper = inserted.node.parent
    assert (upper.state, upper.depth(), len(upper.children)) == (None, 70, 2)
    assert tree.match(key(128)).node.state == 1


def test_a_shared_key_without_a_state_is_a_branching_point(freed):
    tree = freed.tree
    tree.insert(key(320), key(320), 1)
    found = tree.match([*key(257), 900, 901])
    assert (found.length, found.branching) == (0, 256)


def test_a_node_keeps_its_first_state(freed):
    tree = freed.tree
    tree.insert(key(64), key(64), 1)
    again = tree.insert(key(64), [700 + i for i in range(64)], 2)
    assert (again.took_state, again.known, again.rows) == (False, 64, key(64))
    assert list(tree.states()) == [1]


def test_evicting_an_inner_state_leaves_a_tombstone_that_keeps_its_rows(freed):
    tree = freed.tree
    tree.insert(key(64), key(64), 1)
    tree.insert(key(128), key(128), 2)
    assert tree.evict_states(1) == 1
    assert (freed.slots, freed.rows) == ([1], [])
    found = tree.match(key(100))
    assert (found.length, found.branching) == (0, 64)
    assert tree.match(key(128)).length == 128


def test_evicting_a_leaf_removes_it_with_its_stateless_ancestors(freed):
    tree = freed.tree
    tree.insert(key(64), key(64), 1)
    tree.insert(key(128), key(128), 2)
    tree.evict_states(1)
    assert tree.evict_states(1) == 1
    assert sorted(freed.rows) == key(128)
    assert list(tree.nodes()) == []


def test_the_oldest_goes_first_and_a_match_makes_it_young(freed):
    tree = freed.tree
    tree.insert([1] * 64, list(range(64)), 1)
    tree.insert([2] * 64, list(range(64, 128)), 2)
    tree.match([1] * 65)
    assert tree.evict_rows(1) == 64
    assert (freed.rows, freed.slots) == (list(range(64, 128)), [2])


def test_a_lock_keeps_rows_and_state_from_eviction(freed):
    tree = freed.tree
    node = tree.insert(key(128), key(128), 1).node
    tree.lock(node)
    assert tree.evictable_rows() == 0
    assert (tree.evict_rows(1), tree.evict_states(1)) == (0, 0)
    tree.unlock(node)
    assert tree.evictable_rows() == 128
    assert tree.evict_states(1) == 1


def test_a_lock_on_a_child_protects_the_ancestor_s_rows_but_not_its_state(freed):
    tree = freed.tree
    tree.insert(key(64), key(64), 1)
    tree.lock(tree.insert(key(128), key(128), 2).node)
    assert tree.evict_states(2) == 1
    assert (freed.slots, freed.rows) == ([1], [])


def test_a_split_below_a_lock_protects_both_halves(freed):
    tree = freed.tree
    node = tree.insert(key(128), key(128), 1).node
    tree.lock(node)
    other = [*key(64), *[500 + i for i in range(64)]]
    tree.insert(other, other, 2)
    assert tree.evict_rows(1000) == 64
    assert tree.match(key(128)).length == 128
    tree.unlock(node)
    assert tree.evictable_rows() == 128


def test_unlocking_twice_is_an_error(freed):
    node = freed.tree.insert(key(64), key(64), 1).node
    freed.tree.lock(node)
    freed.tree.unlock(node)
    with pytest.raises(CacheError, match="unlocked more often"):
        freed.tree.unlock(node)


def test_keys_are_whole_pages():
    tree = Freed(page_size=16).tree
    tree.insert(key(64), key(64), 1)
    # 63 of 64 tokens agree: three whole pages, and no state at their end.
    assert tree.match(key(64, last=99)).length == 0
    assert tree.insert(key(64, last=99), key(64), 2).known == 48
    with pytest.raises(CacheError, match="whole pages of 16"):
        tree.insert(key(65), key(65), 3)
