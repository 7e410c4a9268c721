"""The track plan: masks of every mode, boundaries of an extend, and which checkpoint is donated."""

import itertools

import pytest
import torch

from gpu_runner.gdn.cache.historical import with_historical_faults
from gpu_runner.gdn.cache.tracking import (
    Checkpoints,
    Grids,
    Strategy,
    boundary_of_result,
    branching_length,
    decode_masks,
    extend_track,
    rows_to_preallocate,
    tracking_slots,
)
from gpu_runner.gdn.faults import VARIABLE

GRID = 128
LENGTHS = torch.tensor([127, 128, 129, 255, 256])
CROSSES = [False, True, False, False, True]
CROSSES_NEXT = [True, False, False, True, False]
CELLS = list(itertools.product([False, True], repeat=3))


@pytest.mark.parametrize(("deterministic", "overlap", "is_lazy"), CELLS)
def test_masks_follow_the_table(deterministic, overlap, is_lazy):
    masks = decode_masks(LENGTHS, GRID, deterministic=deterministic, overlap=overlap)
    assert isinstance(masks.mask, torch.Tensor)
    assert (masks.mask.dtype, masks.mask.device.type) == (torch.bool, "cpu")
    nobody = [False] * 5
    assert masks.mask.tolist() == masks.now == (nobody if deterministic else CROSSES)
    if overlap:
        assert masks.upcoming == (nobody if deterministic else CROSSES_NEXT)
    else:
        assert masks.upcoming is None
    strategy = Strategy.EXTRA_BUFFER_LAZY if is_lazy else Strategy.EXTRA_BUFFER
    preallocated = rows_to_preallocate(masks, strategy, deterministic=deterministic)
    assert preallocated == ([1, 4] if is_lazy and not deterministic else [])


@pytest.mark.parametrize(("deterministic", "overlap"), list(itertools.product([False, True], repeat=2)))
def test_the_list_mask_fails_at_the_transfer_in_every_mode(deterministic, overlap, monkeypatch):
    sound = with_historical_faults(decode_masks(LENGTHS, GRID, deterministic=deterministic, overlap=overlap))
    assert sound.mask.to("cpu").tolist() == sound.now
    monkeypatch.setenv(VARIABLE, "mask_is_list")
    broken = with_historical_faults(decode_masks(LENGTHS, GRID, deterministic=deterministic, overlap=overlap))
    with pytest.raises(AttributeError, match="'list' object has no attribute 'pin_memory'"):
        broken.mask.pin_memory()


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_next_mask_fault_shows_only_without_overlap(deterministic, monkeypatch):
    monkeypatch.setenv(VARIABLE, "next_mask_when_no_overlap")
    alone = with_historical_faults(decode_masks(LENGTHS, GRID, deterministic=deterministic, overlap=False))
    assert alone.upcoming == [False] * 5
    plain = decode_masks(LENGTHS, GRID, deterministic=deterministic, overlap=True)
    assert with_historical_faults(plain) == plain


@pytest.mark.parametrize(
    ("page_size", "interval", "checkpoint", "track"), [(1, 256, 64, 256), (16, 2, 64, 64), (96, 256, 96, 768)]
)
def test_grids_are_multiples_of_chunk_page_and_interval(page_size, interval, checkpoint, track):
    grids = Grids.of(page_size=page_size, track_interval=interval)
    assert (grids.checkpoint, grids.track) == (checkpoint, track)


@pytest.mark.parametrize(
    ("start", "end", "branching", "boundary"),
    [
        (0, 63, None, None),
        (0, 64, None, 64),
        (0, 257, None, 256),
        (64, 100, None, None),
        (64, 200, None, 192),
        (0, 300, 128, 128),
        (0, 300, 300, 256),
        (0, 128, 192, 128),
        (10, 300, 64, 266),
    ],
)
def test_an_extend_checkpoints_its_last_chunk_or_a_branching_point(start, end, branching, boundary):
    assert extend_track(start, end, 64, branching) == boundary


@pytest.mark.parametrize(("hit", "depth", "want"), [(257, 0, 256), (257, 256, None), (63, 0, None), (300, 64, 256)])
def test_a_branching_point_lies_beyond_the_deepest_state(hit, depth, want):
    assert branching_length(hit, depth, 64) == want


@pytest.mark.parametrize(
    ("strategy", "overlap", "slots"),
    [
        (Strategy.NO_BUFFER, False, 0),
        (Strategy.EXTRA_BUFFER, True, 2),
        (Strategy.EXTRA_BUFFER, False, 1),
        (Strategy.EXTRA_BUFFER_LAZY, True, 1),
        (Strategy.EXTRA_BUFFER_LAZY, False, 1),
    ],
)
def test_tracking_slots_per_request(strategy, overlap, slots):
    assert tracking_slots(strategy, overlap=overlap) == slots


def test_ping_pong_keeps_the_previous_checkpoint_while_the_next_is_written():
    strategy = Strategy.EXTRA_BUFFER
    points = Checkpoints.over([5, 6], strategy).begin_write().complete(0, 128, strategy)
    assert (points.destination, points.last_length) == (6, 128)
    writing = points.begin_write()
    assert writing.donation(10_000) == 0
    done = writing.complete(1, 256, strategy)
    assert (done.destination, done.last_length, done.donation(300), done.donation(200)) == (5, 256, 1, 0)
    assert done.donation(100) is None


def test_a_failed_lazy_allocation_invalidates_the_checkpoint_until_it_is_written():
    strategy = Strategy.EXTRA_BUFFER_LAZY
    points = Checkpoints.over([5], strategy).begin_write().complete(0, 128, strategy)
    failed = points.preallocate(None).begin_write()
    assert (failed.last_length, failed.donation(1000), failed.destination) == (None, None, 5)
    assert failed.complete(0, 256, strategy).last_length == 256
    second = points.preallocate(7).begin_write()
    assert (second.destination, second.last_length, second.held()) == (7, 128, [5, 7])
    done = second.complete(1, 256, strategy)
    assert (done.last_length, done.superseded()) == (256, [0])


@pytest.mark.parametrize("lookahead", [0, 1])
def test_the_boundary_does_not_count_the_step_in_flight(lookahead):
    assert boundary_of_result(256 + lookahead, lookahead) == 256
