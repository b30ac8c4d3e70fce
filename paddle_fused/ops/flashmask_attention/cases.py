"""Cases of flashmask_attention: row indices for each sparse mode, and row indices without one.

Legend: B batch, S queries and keys, N and Nkv heads, D head size.
"""

import numpy as np
import paddle

from ..attention.cases import FROM_BNSD, TO_BNSD, golden
from ..case import OpCase
from .op import OPERATOR, flashmask_attention


def hidden_by(indices: np.ndarray, causal: bool, query_len: int) -> np.ndarray:
    """The mask of row indices [B, H, Skv, columns], by definition: bool [B, H, Sq, Skv]."""
    key_len, columns = indices.shape[2:]
    row = np.arange(query_len)[:, None]
    first, *others = (indices[..., None, :, column] for column in range(columns))
    if columns == 1:
        hidden = row >= first
    elif causal:
        hidden = (row >= first) & (row < others[0])
    elif columns == 2:
        hidden = (row >= first) | (row < others[0])
    else:
        hidden = ((row >= first) & (row < others[0])) | ((row >= others[1]) & (row < others[2]))
    if causal:
        hidden = hidden | (np.arange(key_len) > row + key_len - query_len)
    return hidden


def rows_case(name, indices, causal, query_len=None, heads=(4, 2), dim=16) -> OpCase:
    """``indices``: [B, H, Skv, columns], where H is 1, Nkv or N."""
    indices = np.asarray(indices, np.int32)
    batch, of_heads, key_len, _ = indices.shape
    query_len = key_len if query_len is None else query_len
    hidden = hidden_by(indices, causal, query_len).repeat(heads[0] // of_heads if of_heads > 1 else 1, 1)
    shapes = {
        "query": (batch, query_len, heads[0], dim),
        "key": (batch, key_len, heads[1], dim),
        "value": (batch, key_len, heads[1], dim),
    }

    def compute(arrays):
        tensors = (TO_BNSD["BSND"](arrays[key], 0) for key in shapes)
        return (FROM_BNSD["BSND"](golden(*tensors, hidden)),)

    # Created outside captured programs, so its values are known there.
    rows = paddle.to_tensor(indices, place=paddle.CPUPlace())

    def call(t):
        return (flashmask_attention(*(t[key] for key in shapes), rows, causal=causal),)

    return OpCase(
        operator=OPERATOR,
        name=f"{name}, indices {list(indices.shape)}, S ({query_len}, {key_len}), N {heads}",
        arrays=lambda random: {key: random.standard_normal(shape) for key, shape in shapes.items()},
        call=call,
        golden=compute,
        gradients=tuple(shapes),
        is_stable=False,
    )


def documents(*lengths: int, padding: int = 0) -> list[list[int]]:
    """The end row of each token's document. Padding tokens are masked from their own row on."""
    ends = np.cumsum(lengths)
    rows = np.repeat(ends, lengths).tolist()
    return [[row] for row in [*rows, *range(len(rows), len(rows) + padding)]]


def shared_question(question: int, *answers: int, padding: int = 0) -> list[list[int]]:
    """Answers that attend to the question and to themselves, the packing of preferences in PaddleFormers."""
    rows = documents(question, *answers, padding=padding)
    rows[:question] = [[len(rows) - padding]] * question
    return rows


def sliding_window(tokens: int, left: int) -> list[list[int]]:
    return [[min(tokens, j + left + 1)] for j in range(tokens)]


def bidirectional_documents(*lengths: int) -> list[list[int]]:
    ends = np.cumsum(lengths)
    return np.stack([np.repeat(ends, lengths), np.repeat(ends - lengths, lengths)], -1).tolist()


def prefix(tokens: int, length: int) -> list[list[int]]:
    return [[tokens, 0 if j < length else j] for j in range(tokens)]


def random_indices(random, causal: bool, columns: int, shape: tuple[int, int, int], query_len: int):
    """Arbitrary rows, [B, H, Skv, columns]."""
    return random.integers(0, query_len + 1, (*shape, columns)).astype(np.int32)


_random = np.random.default_rng(3)
CASES = [
    rows_case("documents", [[documents(10, 23)], [documents(5, 1, 27)]], True),
    rows_case("causal", [[documents(33)]], True),
    rows_case("padding at the tail", [[documents(10, 13, padding=10)]], True),
    rows_case("shared question", [[shared_question(12, 9, 4, 8)]], True),
    rows_case("shared question and padding", [[shared_question(12, 9, 4, padding=8)]], True),
    rows_case("sliding window", [[sliding_window(33, 6)]], True),
    rows_case("bidirectional documents", [[bidirectional_documents(10, 23)]], False),
    rows_case("prefix", [[prefix(33, 9)], [prefix(33, 20)]], False),
    rows_case("rows of each key head", random_indices(_random, True, 1, (2, 2, 33), 33), True),
    rows_case("rows of each head", random_indices(_random, False, 2, (1, 4, 33), 33), False),
    rows_case("a range below the diagonal", random_indices(_random, True, 2, (2, 1, 33), 33), True),
    rows_case("two ranges", random_indices(_random, False, 4, (2, 1, 33), 33), False),
    rows_case("more keys", random_indices(_random, True, 1, (2, 1, 33), 20), True, 20),
    rows_case("more queries", random_indices(_random, True, 1, (1, 1, 20), 33), True, 33),
]


def _random_case(random) -> OpCase:
    causal = bool(random.random() < 0.5)
    columns = int(random.choice((1, 2) if causal else (2, 4)))
    n_kv = int(random.integers(1, 4))
    heads = n_kv * int(random.integers(1, 4)), n_kv
    query_len, key_len = (int(n) for n in random.integers(1, 40, 2))
    shape = int(random.integers(1, 4)), int(random.choice((1, *heads))), key_len
    indices = random_indices(random, causal, columns, shape, query_len)
    return rows_case("random", indices, causal, query_len, heads, int(random.integers(1, 40)))


RANDOM_CASE = {OPERATOR: _random_case}
