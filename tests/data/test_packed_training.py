"""Training on packed documents is training on each alone, and no document knows of another."""

import functools

import numpy as np
import paddle
import pytest

from llm_npu import surgery
from llm_npu.data.collate import IGNORED, Collator
from llm_npu.models.paddlenlp.families import config_class, model_class

pytestmark = pytest.mark.slow

VOCABULARY = 128
LENGTHS = (7, 1, 30, 12, 5)
COLLATORS = {
    "joined": Collator("none"),
    "longest": Collator("longest"),
    "fixed": Collator("max_length", length=40),
    "joined dense": Collator("none", mask="dense"),
    "fixed dense": Collator("max_length", length=40, mask="dense"),
}
FAMILIES = ("llama", "qwen2", "mistral")
MIXTURES = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    },
}


@functools.cache
def model_of(family: str, fused: bool, dtype: str = "float32"):
    """A small model with random weights, the same for every ``fused`` and ``dtype``."""
    paddle.seed(3)
    config = config_class(family).from_dict(
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 40,  # fewer than a joined row has tokens
            "initializer_range": 0.1,
            **MIXTURES.get(family, {}),
        }
    )
    model = model_class(family)(config).to(dtype=dtype)
    if fused:
        surgery.apply_fused_kernels(model, strict=True)
    return model


def samples(seed: int = 0) -> list[dict]:
    """Documents of `LENGTHS`, the last two in one sample; the first has a label for its last token, too."""
    draw = np.random.default_rng(seed)
    documents = [draw.integers(3, VOCABULARY, length) for length in LENGTHS]
    packed = [
        {"input_ids": ids, "labels": np.append(ids[1:], IGNORED), "seqlens": [len(ids)]} for ids in documents
    ]
    packed[0]["labels"][-1] = 9  # as of a piece of a longer document
    *single, last, other = packed
    joined = {name: np.concatenate([last[name], other[name]]) for name in ("input_ids", "labels", "seqlens")}
    return [*single, joined]


def separately(packed: list[dict]) -> list[dict]:
    """One sample for each document."""
    return [
        {name: sample[name][stop - length : stop] for name in ("input_ids", "labels")}
        for sample in packed
        for length, stop in zip(sample["seqlens"], np.cumsum(sample["seqlens"]), strict=True)
    ]


def inputs(batch: dict) -> dict:
    return {
        name: paddle.to_tensor(value) if isinstance(value, np.ndarray) else value
        for name, value in batch.items()
    }


def loss_and_gradients(model, batches: list[dict]) -> tuple[float, list[np.ndarray]]:
    """Of the mean over all labels of ``batches``, each of which goes through the model alone."""
    counts = [int((batch["labels"] != IGNORED).sum()) for batch in batches]
    total = 0.0
    for batch, count in zip(batches, counts, strict=True):
        if count:
            loss = model(**inputs(batch))[0].astype("float32") * (count / sum(counts))
            loss.backward()
            total += float(loss)
    gradients = [parameter.grad.astype("float32").numpy() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.clear_grad()
    return total, gradients


def distance(actual, exact) -> float:
    """The largest relative distance of a gradient from the exact one, in the largest of its entries."""
    return max(
        np.abs(array - other).max() / np.abs(other).max() for array, other in zip(actual, exact, strict=True)
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", COLLATORS)
def test_a_batch_is_its_documents_one_by_one(family, name):
    model = model_of(family, fused=COLLATORS[name].mask == "object")
    alone = [Collator("none")([document]) for document in separately(samples())]
    exact_loss, exact = loss_and_gradients(model, alone)
    loss, gradients = loss_and_gradients(model, [COLLATORS[name](samples())])
    assert loss == pytest.approx(exact_loss, rel=1e-6)
    assert distance(gradients, exact) < 1e-5


def test_in_bfloat16_a_packed_batch_is_as_close_to_float32_as_its_documents_are():
    alone = [Collator("none")([document]) for document in separately(samples())]
    _, exact = loss_and_gradients(model_of("llama", fused=False), alone)
    model = model_of("llama", fused=True, dtype="bfloat16")
    packed, single = (
        np.sqrt(
            sum(np.square(gradient - other).sum() for gradient, other in zip(gradients, exact, strict=True))
        )
        for _, gradients in (
            loss_and_gradients(model, [Collator("none")(samples())]),
            loss_and_gradients(model, alone),
        )
    )
    assert packed <= 1.5 * single


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", COLLATORS)
@pytest.mark.parametrize("changed", range(len(LENGTHS)))
def test_no_document_sees_another(family, name, changed):
    """Another text in one document leaves every bit of the others' logits, whatever stands beside it."""
    model, collate = model_of(family, fused=COLLATORS[name].mask == "object"), COLLATORS[name]
    start, stop = (int(np.cumsum((0, *LENGTHS))[changed + end]) for end in (0, 1))
    before = samples()
    after = samples()
    flat = np.concatenate([sample["input_ids"] for sample in after])
    flat[start:stop] = (flat[start:stop] + 1) % VOCABULARY
    sizes = np.cumsum([len(sample["input_ids"]) for sample in after])
    for sample, ids in zip(after, np.split(flat, sizes[:-1]), strict=True):
        sample["input_ids"] = ids

    def logits(documents) -> np.ndarray:
        batch = inputs(collate(documents))
        del batch["labels"]
        with paddle.no_grad():
            out = model(**batch)
        out = (out[0] if isinstance(out, tuple) else out).numpy()
        if collate.padding != "none":  # the rows without their padding, one after the other
            lengths = [len(sample["input_ids"]) for sample in documents]
            out = np.concatenate([row[:length] for row, length in zip(out, lengths, strict=True)])[None]
        return out[0]

    logits_before, other = logits(before), logits(after)
    same = (logits_before == other).all(axis=-1)
    assert same[:start].all() and same[stop:].all()
    assert not same[start:stop].any()


@pytest.mark.parametrize("family", MIXTURES)
def test_mixtures_compute_the_same_for_packed_documents(family):
    """To rounding: an expert computes the tokens of all documents in one product."""
    model = model_of(family, fused=True)

    def logits(sample):
        batch = inputs(Collator("none")(sample))
        del batch["labels"]
        with paddle.no_grad():
            return model(**batch)[0][0].numpy()

    alone = np.concatenate([logits([document]) for document in separately(samples())])
    np.testing.assert_allclose(logits(samples()), alone, rtol=0, atol=1e-5 * np.abs(alone).max())
