"""The chunks that parameters are cut into."""

from scaffold.kernels.adam.plan import TILE, chunks


def test_each_element_is_in_one_chunk():
    """An element in none is never trained; one in two is trained twice."""
    sizes = [1, 10, 0, 11, 20]
    covered = []
    for tensor, number in chunks(sizes, 10):
        covered += [(tensor, i) for i in range(10 * number, min(10 * number + 10, sizes[tensor]))]
    assert covered == [(tensor, i) for tensor, size in enumerate(sizes) for i in range(size)]


def test_no_program_has_nothing_to_do():
    """A chunk past the end of a tensor would be launched for nothing."""
    assert [tuple(chunk) for chunk in chunks([10, 0, 11], 10)] == [(0, 0), (2, 0), (2, 1)]


def test_blocks_fill_a_chunk():
    """The rest of a chunk after its last whole block would be updated by two programs."""
    assert TILE.chunk % TILE.block == 0
