"""The seeds through the fuzz targets, without a fuzzer: so the targets cannot rot, and no found bug comes back."""

from __future__ import annotations

from random import Random

import pytest

from fuzz.catalogue import CORPUS, TARGETS, seeds_of
from fuzz.structure import mutate
from fuzz.target import Target

# A serial number that is not positive, which cryptography still reads.
pytestmark = pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_each_seed_gives_a_value_or_a_declared_refusal(target: Target) -> None:
    seeds = seeds_of(target)
    assert seeds
    read = [target.law(seed.read_bytes()) for seed in seeds]
    assert any(read), "no seed is accepted: the fuzzer would never get past the first check"


def test_each_folder_of_seeds_belongs_to_a_target() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)


def test_seeds_are_small() -> None:
    for target in TARGETS.values():
        assert all(seed.stat().st_size <= 16384 for seed in seeds_of(target))


def _mutated(target: Target, data: bytes, number: int) -> bytes:
    """Mutate as the fuzzer's child does, with a flipped bit or a splice in place of libFuzzer's own mutation."""
    random = Random(number)

    def change(data: bytes, size: int) -> bytes:
        changed = bytearray(data or b"x")
        at = random.randrange(len(changed))
        if random.random() < 0.5:
            changed[at] ^= 1 << random.randrange(8)
        else:
            changed[at : at + random.randrange(8)] = random.randbytes(random.randrange(1, 16))
        return bytes(changed[:size])

    return mutate(data, target.max_len, random, change)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_structured_mutation_gives_other_bytes_within_the_limit_and_breaks_no_law(target: Target) -> None:
    seeds = [b"", *(seed.read_bytes() for seed in seeds_of(target))]
    made = [_mutated(target, seeds[number % len(seeds)], number) for number in range(200)]
    assert len(set(made)) > 20
    assert all(len(one) <= target.max_len for one in made)
    for one in made:
        target.law(one)


@pytest.mark.parametrize("name", ["envelope", "csr", "canonical", "tpm-evidence", "tpm-certificate", "request"])
def test_structured_mutations_of_a_sound_input_get_past_its_wrapping(name: str) -> None:
    target = TARGETS[name]
    seeds = [seed.read_bytes() for seed in seeds_of(target)]
    sound = max((seed for seed in seeds if target.law(seed)), key=len)
    made = {_mutated(target, sound, number) for number in range(400)} - {sound}
    assert any(target.law(one) for one in made), "no changed input was accepted"
