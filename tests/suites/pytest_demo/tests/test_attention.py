import pytest


@pytest.mark.parametrize("heads", [1, 4, 16])
def test_rope_table(heads):
    assert heads * 64 // heads == 64


def test_softmax_row_sums_to_one():
    assert sum([0.25, 0.25, 0.5]) == 1


def test_kv_cache_append():
    assert [1, 2] + [3] == [1, 2, 3]
