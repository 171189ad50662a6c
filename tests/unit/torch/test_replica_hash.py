"""The replica hash: one definition, in plain Python here, and what others miss that it does not."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.needs import need
from torch.multiprocessing.reductions import StorageWeakRef

from medevac.torch import replica_hash
from medevac.torch.replica_hash import (
    CHUNK,
    MASK,
    SEED,
    combined,
    first_state,
    flat_bytes,
    hash_tensor,
    hash_tensors,
    sha256,
)

Words = NDArray[np.uint64]


def plain(data: bytes) -> int:
    """The definition as it is written down, a word at a time."""
    data += bytes(-len(data) % 8)
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    return sum((x ^ (x >> 32)) * (splitmix64(SEED + i) | 1) for i, x in enumerate(words)) % 2**64


def splitmix64(value: int) -> int:
    z = (value + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_the_generator_is_the_published_one() -> None:
    # Seed 1234567 of the test vectors at rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64.
    states = [1234567 + n * 0x9E3779B97F4A7C15 for n in range(5)]
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [replica_hash.splitmix64(state % 2**64) for state in states] == published


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    tensor = torch.tensor(list(data), dtype=torch.uint8)
    assert hash_tensor(tensor) == plain(data)


@pytest.mark.parametrize("extra", [0, 1, 7, 8, 9])
def test_over_the_end_of_a_chunk_and_over_what_weights_are_kept(extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_hash, "KEPT", CHUNK)
    tensor = torch.randint(0, 256, (2 * CHUNK * 8 + extra,), dtype=torch.uint8)
    assert hash_tensor(tensor) == plain(tensor.numpy().tobytes())


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (7, 11), (5, 0, 2), (129, 3)], ids=str)
def test_any_type_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).mul(3).to(dtype)
    assert hash_tensor(tensor) == plain(flat_bytes(tensor).numpy().tobytes())
    assert len(flat_bytes(tensor)) == tensor.numel() * tensor.element_size()


def test_of_values_in_logical_order_whatever_the_strides() -> None:
    whole = torch.randn(40, 60)
    for view in (whole.T, whole[::2, 1::3], whole[3:4], whole.expand(2, 40, 60), whole.flip(0), whole.view(-1)[1:]):
        assert hash_tensor(view) == hash_tensor(view.clone(memory_format=torch.contiguous_format))
    wave = torch.randn(9, dtype=torch.complex64)
    assert hash_tensor(wave.conj()) == hash_tensor(wave.conj().resolve_conj().clone())
    assert hash_tensor(whole.requires_grad_()) == hash_tensor(whole.detach())


def test_of_tensors_in_another_order_one_copy_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channels_last model would need its own size once more."""
    tensors = [torch.randn(2, 3, 8, 8 + at).to(memory_format=torch.channels_last) for at in range(4)]
    tensors[2:2] = [torch.randn(5), torch.randn(9, dtype=torch.complex64).conj()]
    expected = [plain(one.resolve_conj().numpy().tobytes()) for one in tensors]
    copies: list[StorageWeakRef] = []
    alive = []

    def watched(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(sum(not copy.expired() for copy in copies))  # type: ignore[no-untyped-call]
        data = flat_bytes(tensor)
        if data.data_ptr() != tensor.data_ptr() or tensor.is_conj():
            copies.append(StorageWeakRef(data.untyped_storage()))  # type: ignore[no-untyped-call]
        return data

    monkeypatch.setattr(replica_hash, "flat_bytes", watched)
    assert hash_tensors(tensors) == expected
    assert len(copies) == 5
    assert alive == [0] * 6


def test_sha256_is_of_the_same_bytes() -> None:
    whole = torch.arange(6, dtype=torch.int16).reshape(2, 3)
    assert sha256(whole.T) == hashlib.sha256(bytes((0, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5, 0))).hexdigest()
    assert sha256(torch.empty(0)) == hashlib.sha256().hexdigest()


def test_what_has_no_plain_memory_is_refused() -> None:
    for tensor in (torch.empty(3, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(TypeError, match="no plain memory"):
            hash_tensor(tensor)


def test_any_order_of_reduction_and_any_number_of_threads() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(size) for size in (3, 1, 5 * CHUNK, 2 * CHUNK + 5, 0, 700)]
    alone = [hash_tensor(one) for one in tensors]
    for threads in (1, 2, 3, 16):
        assert hash_tensors(tensors, threads=threads) == alone
        assert hash_tensors(tensors[::-1], threads=threads) == alone[::-1]


def test_as_torch_computes_it_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_hash, "ROOM", 1000)
    for size in (0, 1, 8, 9, 8000, 8008, 30_001):
        data = torch.randint(0, 256, (size,), dtype=torch.uint8)
        assert int(replica_hash.on_device(data)) & MASK == hash_tensor(data), size
        assert int(replica_hash.on_device(data[3:])) & MASK == hash_tensor(data[3:]), size


TRITON = """
    import torch
    from medevac.torch.replica_hash import MASK, hash_tensor, padded
    from medevac.torch.replica_triton import BLOCK, ROUNDS, hash_words
    for size in (0, 1, 8, 9, 8 * BLOCK * ROUNDS, 8 * BLOCK * ROUNDS * 2 + 11):
        data = torch.randint(0, 256, (size,), dtype=torch.uint8)
        assert int(hash_words(padded(data))) & MASK == hash_tensor(data), size
"""


def test_the_triton_kernel_in_its_interpreter_gives_the_same_bits(tmp_path: object) -> None:
    need("triton")
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(TRITON)]
    subprocess.run(command, check=True, timeout=120, env={"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin"})


COMPILED = """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile
    from medevac.torch.replica_triton import BLOCK, ROUNDS, _sum
    kinds = dict(words="*i64", out="*i64", count="i32", first="i64", mix1="i64", mix2="i64")
    source = ASTSource(_sum, kinds | dict(BLOCK="constexpr", ROUNDS="constexpr"), {(6,): BLOCK, (7,): ROUNDS})
    for capability in (80, 90):
        made = compile(source, target=GPUTarget("cuda", capability, 32))
        assert made.asm["cubin"]
        assert made.asm["ptx"].count("atom.") == 1
"""


def test_the_triton_kernel_compiles_for_gpus_that_are_not_here(tmp_path: object) -> None:
    need("triton")
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(COMPILED)]
    subprocess.run(command, check=True, timeout=120, env={"TRITON_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"})


def test_a_triton_that_does_not_work_here_costs_speed_and_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without_a_compiler(words: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("Failed to find C compiler")

    broken = types.ModuleType("medevac.torch.replica_triton")
    broken.hash_words = without_a_compiler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, broken.__name__, broken)
    assert replica_hash._triton.__wrapped__(torch.device("cpu")) is None
    (line,) = [record.getMessage() for record in caplog.records]
    assert "no Triton kernel (Failed to find C compiler)" in line


# --- what changes it must see -----------------------------------------------------------------------------------------


def xor(words: Words) -> int:
    return int(np.bitwise_xor.reduce(words))


def plain_sum(words: Words) -> int:
    return int(np.add.reduce(words))


def weighted_sum(words: Words) -> int:
    """Odd weights by position, but the words as they are."""
    return int(np.add.reduce(words * replica_hash.weights_of(0)[: len(words)]))


def ours(words: Words) -> int:
    return hash_tensor(torch.from_numpy(words.view(np.int64)))


def missed(method: Callable[[Words], int], change: Callable[[Words, np.random.Generator], None], trials: int) -> int:
    """How often the method does not see the change in 512 random words."""
    chance = np.random.default_rng(7)
    count = 0
    for _ in range(trials):
        words = chance.integers(0, 2**64, 512, np.uint64)
        changed = words.copy()
        change(changed, chance)
        assert (changed != words).any()
        count += method(words) == method(changed)
    return count


def one_bit(words: Words, chance: np.random.Generator) -> None:
    words[chance.integers(512)] ^= np.uint64(1) << chance.integers(64, dtype=np.uint64)


def swapped_blocks(words: Words, chance: np.random.Generator) -> None:
    at = chance.integers(4) * 128
    words[at : at + 128] = np.roll(words[at : at + 128], 64)


def paired_flips(words: Words, chance: np.random.Generator) -> None:
    """The same bit of two words, one from 0 to 1, one from 1 to 0."""
    bit = np.uint64(1) << chance.integers(64, dtype=np.uint64)
    words[np.argmax((words & bit) == 0)] ^= bit
    words[512 - 1 - np.argmax((words[::-1] & bit) != 0)] ^= bit


def paired_top_bits(words: Words, chance: np.random.Generator) -> None:
    words[chance.choice(512, 2, replace=False)] ^= np.uint64(1 << 63)


CHANGES = [one_bit, swapped_blocks, paired_flips, paired_top_bits]
TRIALS = 4000


@pytest.mark.parametrize(
    ("method", "change"),
    [
        (xor, swapped_blocks),
        (plain_sum, swapped_blocks),
        (xor, paired_top_bits),
        (plain_sum, paired_top_bits),
        (weighted_sum, paired_top_bits),
    ],
)
def test_others_miss_each_of_these(method: Callable[[Words], int], change: Callable[..., None]) -> None:
    assert missed(method, change, 100) == 100


def test_xor_misses_paired_flips_each_time() -> None:
    assert missed(xor, paired_flips, 100) == 100


@pytest.mark.parametrize("change", CHANGES)
def test_ours_misses_none(change: Callable[..., None]) -> None:
    assert missed(ours, change, TRIALS) == 0


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 10 * CHUNK),
)
def test_one_changed_word_is_never_missed(before: int, after: int, position: int) -> None:
    """The fold and an odd weight are bijections: equal terms mean equal words."""
    same = replica_hash._term(before, position) == replica_hash._term(after, position)
    assert same == (before == after)


@given(st.lists(st.integers(0, MASK), min_size=1, max_size=9), st.data())
def test_one_changed_tensor_changes_the_hash_of_all(hashes: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(hashes) - 1))
    other = data.draw(st.integers(0, MASK).filter(lambda value: value != hashes[at]))
    assert combined(hashes) != combined([*hashes[:at], other, *hashes[at + 1 :]])


def test_equal_tensors_in_another_order_are_another_state() -> None:
    one, other = hash_tensors([torch.ones(3), torch.zeros(3)])
    assert combined([one, other]) != combined([other, one])


def test_first_state_is_an_int64() -> None:
    states = [first_state(at) for at in (0, 1 << 40, 1 << 62)]
    assert all(-(1 << 63) <= state < 1 << 63 for state in states)
