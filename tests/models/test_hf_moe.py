"""Checkpoints of Hugging Face's Mixtral and Qwen2-MoE mean the same here, with the fused MoE layers.

They need an interpreter with torch and transformers (``pip install ".[hf]"``): this one, or the one that the
variable LLM_NPU_HF_PYTHON names. Without it the tests are skipped, and say so.
"""

import json
import os
import re
import subprocess
import sys
from itertools import groupby

import numpy as np
import paddle
import pytest
from paddlenlp.transformers import MixtralForCausalLM, Qwen2MoeForCausalLM
from precision import values

from llm_npu.surgery import apply_fused_kernels

pytestmark = pytest.mark.sampled

PYTHON = os.environ.get("LLM_NPU_HF_PYTHON", sys.executable)
# Writes checkpoints with random weights, and what the models make of some tokens in 32 and 64 bits.
HUGGING_FACE = """
import json, sys
import numpy as np, torch, transformers
for name, sizes in json.loads(sys.argv[2]).items():
    folder, kind = f"{sys.argv[1]}/{name}", name.partition(" ")[0]
    torch.manual_seed(0)
    model = getattr(transformers, kind + "ForCausalLM")(getattr(transformers, kind + "Config")(**sizes))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)  # experts that differ clearly in their probabilities
    model.save_pretrained(folder)
    tokens = torch.randint(0, sizes["vocab_size"], (2, 11))
    weights = torch.randn(2, 11, sizes["vocab_size"], dtype=torch.float64)
    made = {"tokens": tokens, "weights": weights}
    for dtype in (torch.float32, torch.float64):
        model = model.to(dtype)
        logits = model(tokens).logits
        (logits.double() * weights).sum().backward()
        found = {"logits": logits, **{name: p.grad for name, p in model.named_parameters()}}
        made.update({f"{dtype} {name}": tensor.detach() for name, tensor in found.items()})
        model.zero_grad()
    np.savez(folder + "/made.npz", **made)
"""
SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
}
QWEN2_MOE = {**SIZES, "num_experts": 4, "moe_intermediate_size": 80, "shared_expert_intermediate_size": 112}
MODELS = {
    "Mixtral": (MixtralForCausalLM, {**SIZES, "num_local_experts": 4, "intermediate_size": 80}),
    "Qwen2Moe": (Qwen2MoeForCausalLM, QWEN2_MOE),
    "Qwen2Moe norm_topk_prob": (Qwen2MoeForCausalLM, {**QWEN2_MOE, "norm_topk_prob": True}),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A folder with a checkpoint of Hugging Face for every model, and what it makes of some tokens."""
    probe = subprocess.run([PYTHON, "-c", "import torch, transformers"], capture_output=True, text=True)
    if probe.returncode:
        reason = probe.stderr.strip().splitlines()[-1]
        pytest.skip(f"{PYTHON}: {reason}; name another interpreter in LLM_NPU_HF_PYTHON")
    folder = tmp_path_factory.mktemp("checkpoints")
    sizes = json.dumps({name: sizes for name, (_, sizes) in MODELS.items()})
    command = [PYTHON, "-c", HUGGING_FACE, str(folder), sizes]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_checkpoint_gives_the_logits_and_gradients_of_hugging_face(checkpoints, name):
    reference = np.load(checkpoints / name / "made.npz")
    model = MODELS[name][0].from_pretrained(str(checkpoints / name), convert_from_torch=True, dtype="float32")
    apply_fused_kernels(model, kernels=["moe"])

    logits = model(paddle.to_tensor(reference["tokens"]), return_dict=True).logits
    (logits.astype("float64") * paddle.to_tensor(reference["weights"])).sum().backward()
    arrays = {"logits": values(logits)}
    for name_here, parameter in model.named_parameters():
        name_there = name_here.replace(f"{model.base_model_prefix}.", "model.")
        is_linear = parameter.ndim > 1 and "embed_tokens" not in name_here
        arrays[name_there] = values(parameter.grad).T if is_linear else values(parameter.grad)

    assert {f"torch.float64 {name}" for name in arrays} == {
        key for key in reference.files if "float64" in key
    }
    for kind, names in groupby(sorted(arrays, key=_kind), _kind):
        errors, noise_floors, truths = [], [], []
        for name in names:
            exact = reference[f"torch.float64 {name}"]
            errors.append(np.linalg.norm(arrays[name] - exact))
            noise_floors.append(np.linalg.norm(reference[f"torch.float32 {name}"] - exact))
            truths.append(np.linalg.norm(exact))
        error, noise_floor, truth = map(np.linalg.norm, (errors, noise_floors, truths))
        # the noise floor is of other kernels, which round elsewhere; a wrong sum is off by thousands of times
        assert error <= 4 * noise_floor + 2**-24 * truth, f"{kind}: {error:.3e}, theirs {noise_floor:.3e}"


def _kind(name):
    """The same for the weights of all layers and experts that have one place in them."""
    return re.sub(r"\d+", "*", name)
