"""Contexts beside each other agree with what the verdict held against the arms."""

from __future__ import annotations

from gpu_runner.protocol import ContextClass, ContextField
from service.history.differences import ContextView, FieldRow, Standing, context_view
from service.store.session import read
from tests.factories import Played, add_experiment, exclude


def view_of(played: Played) -> ContextView:
    with read() as session:
        return context_view(session, played.id)


def row(view: ContextView, channel: str, name: str) -> FieldRow:
    return next(row for row in view.rows if (row.channel, row.name) == (channel, name))


def driver(value: str) -> tuple[ContextField, ...]:
    return (ContextField("device", "driver", ContextClass.IDENTITY, value),)


def only_control(_block: int, arm: int) -> bool:
    return arm == 0


def test_before_any_block_the_preparation_is_compared():
    played = add_experiment(exclude())
    assert view_of(played).rows == ()
    played.step()
    view = view_of(played)
    assert view.block is None
    assert row(view, "suite", "tests").standing is Standing.DECLARED


def test_the_newest_complete_block_is_shown_while_everything_is_like_for_like():
    played = add_experiment(exclude(), fails=only_control)
    finding = played.play()
    view = view_of(played)
    assert view.block == finding.stop_index
    assert view.count(Standing.UNDECLARED) == 0
    assert row(view, "pressure", "memory_available_bytes").standing is Standing.EQUAL
    assert row(view, "pressure", "wall_s").standing is Standing.OBSERVED


def test_the_first_block_with_an_undeclared_field_is_shown_with_both_values():
    played = add_experiment(exclude(), fails=only_control)
    played.contexts = {0: driver("575"), 1: driver("580")}
    assert played.play().verdict == "NOT_LIKE_FOR_LIKE"
    found = row(view_of(played), "device", "driver")
    assert (found.standing, found.values) == (Standing.UNDECLARED, ("575", "580"))


def test_a_field_that_changed_from_block_to_block_shows_both_values():
    played = add_experiment(exclude(), fails=only_control)
    toolchain = [ContextField("software", "cmake", ContextClass.IDENTITY, version) for version in ("3.30", "3.31")]
    block_id, _ = played.until_counted()
    played.contexts = {0: (toolchain[0],), 1: (toolchain[0],)}
    played.run(block_id)
    played.contexts = {0: (toolchain[1],), 1: (toolchain[1],)}
    assert played.play().verdict == "NOT_LIKE_FOR_LIKE"
    found = row(view_of(played), "software", "cmake")
    assert found.standing is Standing.UNDECLARED
    assert "3.30, in a later block 3.31" in found.values


def test_a_list_that_lacks_more_than_was_declared_is_undeclared_like_the_verdict_says():
    played = add_experiment(exclude())
    played.missing = {1: ("sampler.greedy",)}
    assert played.play().verdict == "NOT_LIKE_FOR_LIKE"
    assert row(view_of(played), "suite", "tests").standing is Standing.UNDECLARED


def test_of_several_arms_a_block_is_shown_that_still_has_them_all():
    played = add_experiment(exclude(), exclude("attention.prefill"), fails=lambda _block, arm: arm != 1)
    assert played.play() is not None
    view = view_of(played)
    assert None not in row(view, "suite", "tests").values
