from __future__ import annotations

import pytest

from evenly.core.balancing import splitmix


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        # The outputs that other implementations of SplitMix64 test themselves against.
        pytest.param(0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F], id="seed 0"),
        pytest.param(
            1234567,
            [6457827717110365317, 3203168211198807973, 9817491932198370423],
            id="seed 1234567",
        ),
    ],
)
def test_outputs_are_those_of_every_other_implementation(seed: int, expected: list[int]) -> None:
    assert [splitmix.output(seed, number) for number in range(3)] == expected


def test_a_seed_beyond_64_bits_wraps_around() -> None:
    assert splitmix.output(2**64 + 5, 2) == splitmix.output(5, 2)
