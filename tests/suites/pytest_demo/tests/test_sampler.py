import pytest
from engine.chance import chance


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_greedy(temperature):
    assert max([0.1, 0.9]) == 0.9


def test_top_p():
    assert sum([0.5, 0.3]) < 0.9


def test_page_allocator_race():
    """Fails by itself once in ten runs, whatever ran before."""
    free_pages = 63 if chance("page_allocator_race", 100) else 64
    assert free_pages == 64
