"""LoRA of PaddleFormers' vision-language models trains no layer of a part that ``freeze_config`` freezes."""

import itertools
from types import SimpleNamespace

import pytest
from fused_models.vision import FAMILIES

pytestmark = pytest.mark.slow

# Prefixes of a part's layers; the first that fits names the part.
PARTS = {
    "aligner": ("mlp_AR.", "model.visual.merger.", "model.visual.deepstack_merger_list."),
    "vision": ("visual.", "model.visual."),
    "llm": ("model.",),
}
CHOICES = [frozen for count in range(len(PARTS)) for frozen in itertools.combinations(PARTS, count)]
every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


def trained_parts(family, frozen) -> set[str]:
    """The parts with weights of LoRA in the model that PaddleFormers' command creates."""
    base = family.build()
    from paddleformers.cli.train.sft import workflow

    model = SimpleNamespace(lora=True, lora_path=None, lora_rank=2, rslora=False, lora_plus_scale=1.0)
    model.model_name_or_path = ""
    training = SimpleNamespace(sharding_parallel_size=1, tensor_model_parallel_size=1)
    training.freeze_config = " ".join(f"freeze_{part}" for part in frozen)
    parameters = workflow.create_peft_model(model, training, "float32", base).model.named_parameters()
    names = [name for name, weight in parameters if not weight.stop_gradient]
    return {next(part for part in PARTS if name.startswith(PARTS[part])) for name in names}


@every_family
@pytest.mark.parametrize("frozen", CHOICES, ids="-".join)
def test_lora_trains_the_other_parts(family, frozen):
    assert trained_parts(family, frozen) == PARTS.keys() - set(frozen)


def test_upstream_trains_frozen_parts(monkeypatch):
    trained_parts(FAMILIES[0], ())  # imports the module
    from paddleformers.cli.train.sft import workflow

    name = "get_multimodel_lora_target_modules"
    monkeypatch.setattr(workflow, name, getattr(workflow, name).__wrapped__)
    trained = {family.model_type: trained_parts(family, ("vision", "aligner")) for family in FAMILIES}
    assert trained == {
        "paddleocr_vl": {"vision", "llm"},
        "qwen2_5_vl": {"vision", "aligner", "llm"},
        "qwen3_vl": {"llm"},
    }
