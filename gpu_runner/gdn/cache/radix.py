"""A prefix tree that keeps KV rows for every token and a recurrent state for some lengths.

A node carries at most one state: the one at the END of its key. Splitting a node leaves the state on the child,
because that is where the key still ends. A node without a state ("tombstone" after an eviction) still proves how
long a key is shared, but nothing can resume from it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gpu_runner.gdn.cache.errors import CacheError
from gpu_runner.gdn.cache.tracking import branching_length


@dataclass(eq=False, slots=True)
class Node:
    """One edge of the tree: `key` tokens and their KV `rows`, and the state at the end of the key or None.

    locks: requests that read these rows. state_locks: requests that resume, or will resume, from the state.
    """

    key: tuple[int, ...]
    rows: list[int]
    parent: Node | None
    state: int | None = None
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    locks: int = 0
    state_locks: int = 0

    def path(self) -> Iterator[Node]:
        """This node and its ancestors, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def depth(self) -> int:
        """Length of the whole key from the root to the end of this node."""
        return sum(len(node.key) for node in self.path())


@dataclass(frozen=True, slots=True)
class Match:
    """The longest prefix to resume from.

    node: the deepest node with a state, or the root. rows: KV rows up to its end. branching: a length beyond it
    that other requests share, worth a checkpoint, or None.
    """

    node: Node
    rows: list[int]
    branching: int | None

    @property
    def length(self) -> int:
        """How many tokens need not be computed."""
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Insertion:
    """What became of a donated key: its node, the tree's rows for it, how many of them the tree had before, and
    whether the tree took the state (it did not where it had one already).
    """

    node: Node
    rows: list[int]
    known: int
    took_state: bool


class RadixTree:
    """The tree, its locks and its two LRU lists (leaves' KV and states), on pages of `page_size` tokens."""

    def __init__(
        self,
        *,
        page_size: int,
        checkpoint_grid: int,
        free_rows: Callable[[list[int]], None],
        free_slot: Callable[[int], None],
    ) -> None:
        self._page = page_size
        self._grid = checkpoint_grid
        self._free_rows = free_rows
        self._free_slot = free_slot
        self.reset_links()

    def reset_links(self) -> None:
        """Forgets every node without freeing anything."""
        self.root = Node((), [], None)
        self._kv_lru: OrderedDict[Node, None] = OrderedDict()
        self._state_lru: OrderedDict[Node, None] = OrderedDict()

    def match(self, tokens: Sequence[int]) -> Match:
        """The deepest checkpoint whose key is a prefix of `tokens`; touches the path in both LRU lists."""
        best, best_rows, rows, node = self.root, 0, [], self.root
        full_hit = 0
        while (child := node.children.get(self._edge(tokens, full_hit))) is not None:
            shared = self._shared(child.key, tokens, full_hit)
            full_hit += shared
            if shared < len(child.key):
                break
            self._touch(child)
            rows += child.rows
            node = child
            if node.state is not None:
                best, best_rows = node, full_hit
        return Match(best, rows[:best_rows], branching_length(full_hit, best_rows, self._grid))

    def insert(self, tokens: Sequence[int], rows: list[int], state: int | None) -> Insertion:
        """Adds the key `tokens` with its rows, and `state` at its end unless there is one already.

        Rows of the part that the tree knew stay the caller's; the caller frees them, and the state that was not
        taken. CacheError when the key is not whole pages.
        """
        if len(tokens) % self._page or len(tokens) != len(rows):
            raise CacheError(
                f"a key of {len(tokens)} tokens over {len(rows)} rows; keys are whole pages of {self._page}"
            )
        node, known = self.root, 0
        while known < len(tokens) and (child := node.children.get(self._edge(tokens, known))) is not None:
            shared = self._shared(child.key, tokens, known)
            known += shared
            node = child if shared == len(child.key) else self._split(child, shared)
            self._touch(node)
        if known < len(tokens):
            leaf = Node(tuple(tokens[known:]), rows[known:], node)
            node.children[self._edge(tokens, known)] = leaf
            node = leaf
            self._kv_lru[leaf] = None
        took = node.state is None and state is not None and node is not self.root
        if took:
            node.state = state
            self._state_lru[node] = None
        tree_rows = [row for part in reversed(list(node.path())) for row in part.rows]
        return Insertion(node, tree_rows, known, took)

    def lock(self, node: Node) -> None:
        """Keeps the rows up to `node` and the state at `node` from eviction."""
        for part in node.path():
            part.locks += 1
        node.state_locks += 1

    def unlock(self, node: Node) -> None:
        """Takes one lock back; CacheError when there is none."""
        if node.state_locks <= 0:
            raise CacheError("a node is unlocked more often than it was locked")
        for part in node.path():
            part.locks -= 1
        node.state_locks -= 1

    def evict_rows(self, wanted: int) -> int:
        """Frees at least `wanted` KV rows, oldest unlocked leaves first; returns how many were freed."""
        freed = 0
        while freed < wanted:
            leaf = next((n for n in self._kv_lru if not n.children and not n.locks and not n.state_locks), None)
            if leaf is None:
                break
            freed += self._remove_leaf(leaf)
        return freed

    def evict_states(self, wanted: int) -> int:
        """Frees at least `wanted` states, oldest unlocked first; returns how many.

        An inner node becomes a tombstone and keeps its rows; a leaf is removed, since nothing resumes from it.
        """
        freed = 0
        while freed < wanted:
            node = next((n for n in self._state_lru if not n.state_locks), None)
            if node is None:
                break
            self._drop_state(node)
            freed += 1
            if not node.children and not node.locks:
                self._remove_leaf(node)
        return freed

    def evictable_rows(self) -> int:
        """Rows that eviction could free now: those of subtrees without any lock."""
        return sum(len(node.rows) for node in self.nodes() if not node.locks)

    def states(self) -> dict[int, Node]:
        """Every state slot that the tree holds, with its node."""
        return {node.state: node for node in self.nodes() if node.state is not None}

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _edge(self, tokens: Sequence[int], start: int) -> tuple[int, ...]:
        return tuple(tokens[start : start + self._page])

    def _shared(self, key: tuple[int, ...], tokens: Sequence[int], start: int) -> int:
        limit = min(len(key), len(tokens) - start)
        shared = next((i for i in range(limit) if key[i] != tokens[start + i]), limit)
        return shared // self._page * self._page

    def _split(self, child: Node, length: int) -> Node:
        """A new node above `child` with the first `length` tokens of its key; the state stays on the child."""
        assert child.parent is not None, "the root has no key to split"
        parent = child.parent
        upper = Node(child.key[:length], child.rows[:length], parent, locks=child.locks)
        parent.children[self._edge(child.key, 0)] = upper
        child.key, child.rows, child.parent = child.key[length:], child.rows[length:], upper
        upper.children[self._edge(child.key, 0)] = child
        self._kv_lru[upper] = None
        return upper

    def _touch(self, node: Node) -> None:
        self._kv_lru.move_to_end(node)
        if node.state is not None:
            self._state_lru.move_to_end(node)

    def _drop_state(self, node: Node) -> None:
        assert node.state is not None, "only nodes with a state are listed"
        self._free_slot(node.state)
        node.state = None
        del self._state_lru[node]

    def _remove_leaf(self, leaf: Node) -> int:
        """Removes `leaf` and ancestors that become stateless, unlocked leaves; returns the rows freed."""
        freed = 0
        node = leaf
        while node.parent is not None and not node.children and not node.locks and (node is leaf or node.state is None):
            if node.state is not None:
                self._drop_state(node)
            self._free_rows(node.rows)
            freed += len(node.rows)
            del node.parent.children[node.key[: self._page]]
            del self._kv_lru[node]
            node = node.parent
        return freed
