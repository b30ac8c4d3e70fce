"""Each patch in llm_npu.patches is needed, and works."""

import importlib
import subprocess

import numpy as np
import paddle
import pytest
from safetensors import safe_open
from safetensors.paddle import save_file

from llm_npu.models import stored
from llm_npu.models.families import config_class
from llm_npu.patches import layers
from paddle_fused import paddle_release

# A dataset of which a sample cannot be read, read to the end or to the first error; one for each such sample.
PROGRAM = """
import sys
from llm_npu import device
device.select(sys.argv[1])
import paddle
from llm_npu import patches
if sys.argv[2] == "patched":
    patches.fix_data_loader_errors()
    patches.fix_data_loader_errors()

class Samples(paddle.io.Dataset):
    def __init__(self, damaged):
        self.damaged = damaged
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == self.damaged:
            raise ValueError(f"sample {index} is damaged")
        return {"input_ids": paddle.zeros([3]).numpy()}

paddle.set_device(sys.argv[1])
for damaged in map(int, sys.argv[3:]):
    try:
        print(len(list(paddle.io.DataLoader(Samples(damaged), batch_size=1))), "batches")
    except ValueError as error:
        print("raised:", error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_data_loader_reports_errors(run_python, device):
    done = run_python("-c", PROGRAM, device, "patched", 0, 2, 99)
    assert done.stdout.splitlines() == [
        "raised: sample 0 is damaged",
        "raised: sample 2 is damaged",
        "4 batches",
    ], done.stderr


@pytest.mark.slow
def test_upstream_data_loader_waits_for_ever(start_python):
    """When this fails, Paddle has mended it and llm_npu.patches can forget it."""
    process = start_python("-c", PROGRAM, "cpu", "upstream", 0)
    # The reading thread ends with a traceback; the imports before it take as long as they take.
    assert any("sample 0 is damaged" in line for line in process.stderr)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2)  # what is left for the program is to print a line


# What the MoE layers make of two tokens with experts that multiply by 1, 10, 100 and 1000, and the gradient
# of the first token's logits; an auxiliary loss; what a gate with float32 weights, as AMP O2 leaves it, makes
# of bfloat16 activations.
MIXTURES = """
import sys
from llm_npu import device
device.select("cpu")
import paddle
from llm_npu import patches
if sys.argv[1] == "patched":
    patches.apply()
    patches.apply()
from paddlenlp.transformers import MixtralConfig, Qwen2MoeConfig, Qwen2MoeForCausalLM
from paddlenlp.transformers.mixtral.modeling import MixtralSparseMoeBlock
from paddlenlp.transformers.qwen2_moe.modeling import Qwen2MoeGate, Qwen2MoeSparseMoEBlock

class Expert(paddle.nn.Layer):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def forward(self, x):
        return x * self.factor

paddle.set_device("cpu")
sizes = {"hidden_size": 8, "num_experts_per_tok": 2}
tokens = paddle.to_tensor([[[1.0] + [0.0] * 7, [0.0, 1.0] + [0.0] * 6]])
for block in (
    MixtralSparseMoeBlock(MixtralConfig(**sizes, num_local_experts=4)),
    Qwen2MoeSparseMoEBlock(Qwen2MoeConfig(**sizes, num_experts=4)),
    Qwen2MoeSparseMoEBlock(Qwen2MoeConfig(**sizes, num_experts=4, norm_topk_prob=True)),
):
    block.experts = paddle.nn.LayerList(Expert(float(10**i)) for i in range(4))
    block.shared_expert = Expert(0.0)
    logits = paddle.to_tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.1, 0.4]]).log()
    block.gate.weight.set_value(paddle.concat([logits, paddle.zeros([6, 4])]))
    try:
        out = block(tokens)[0].sum(-1).flatten()
        out.sum().backward()
        gradient = block.gate.weight.grad[0].tolist()
        print(type(block).__name__, [round(x, 1) for x in out.tolist()], [round(x, 1) for x in gradient])
    except (TypeError, ValueError) as error:
        print(type(block).__name__, type(error).__name__)
sizes |= {"vocab_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_experts": 4}
sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2}
model = Qwen2MoeForCausalLM(Qwen2MoeConfig(**sizes, output_router_logits=True))  # whose gates are all ones
try:
    print("auxiliary loss", float(model(paddle.to_tensor([[1, 2, 3]]))[0]))
except (TypeError, ValueError) as error:
    print("auxiliary loss", type(error).__name__)
gate = Qwen2MoeGate(Qwen2MoeConfig(), 4, 8, top_k=2, drop_tokens=False)
try:
    _, weights, *_ = gate(paddle.ones([1, 3, 8], "bfloat16"))
    print("gate", weights.dtype)
except ValueError as error:
    print("gate", "bfloat16" in str(error))
"""


@pytest.mark.slow
def test_moe_models_run(run_python):
    """Where the upstream ones run, PaddleNLP or Paddle has mended it, and llm_npu.patches can forget it."""

    def printed(patch):
        return run_python("-c", MIXTURES, patch).stdout.splitlines()

    mixtral, qwen2_moe = "MixtralSparseMoeBlock", "Qwen2MoeSparseMoEBlock"
    # of the first token 0.3 goes to the expert that makes 100 of it and 0.4 to the one that makes 1000
    raw = "[430.0, 400.4] [-43.0, -86.0, -99.0, 228.0]"
    normalised = "[614.3, 500.5] [0.0, 0.0, -220.4, 220.4]"
    # before Paddle 3.1 Mixtral runs, and before 3.2 Qwen2-MoE, with wrong gradients and without its norm
    upstream = [f"{mixtral} {'ValueError' if paddle_release.at_least(3, 1) else normalised}"]
    if paddle_release.at_least(3, 2):
        upstream += [*[f"{qwen2_moe} TypeError"] * 2, "auxiliary loss TypeError"]
    else:
        wrong = "[430.0, 400.4] [-43.1, -86.1, -98.9, 228.1]"
        upstream += [*[f"{qwen2_moe} {wrong}"] * 2, "auxiliary loss ValueError"]
    assert printed("upstream") == [*upstream, "gate True"]
    patched = [f"{mixtral} {normalised}", f"{qwen2_moe} {raw}", f"{qwen2_moe} {normalised}"]
    # two of four experts get every token, each with a probability of 1/4: 4 * (1/4 + 1/4)
    assert printed("patched") == [*patched, "auxiliary loss 2.0", "gate paddle.float32"]


@pytest.mark.parametrize("family", ["mistral", "mixtral", "gemma", "gpt"])
def test_the_loss_of_labels_without_a_loss_is_zero(family):
    """Upstream's criterion: tests/upstream/programs/paddlenlp/mean_of_no_losses.py."""
    layers.fix_means_of_no_losses()
    modeling = importlib.import_module(f"paddlenlp.transformers.{family}.modeling")
    (kind,) = (value for name, value in vars(modeling).items() if name.endswith("PretrainingCriterion"))
    criterion = kind(config_class(family)(vocab_size=3, **{"ignore_index": -100} if family == "gpt" else {}))
    rows = np.array([[1.0, 2.0, 0.5], [60.0, 0.0, 0.0], [0.25, 0.0, -3.0]])  # the second token is certain
    losses = np.log(np.exp(rows).sum(-1)) - rows[range(3), [1, 0, 2]]
    for labels, expected in (
        ([-100, -100, -100], 0.0),
        ([-100, 0, -100], 0.0),
        ([1, -100, 2], losses[[0, 2]].mean()),
    ):
        logits = paddle.to_tensor(rows[None], dtype="float32", stop_gradient=False)
        loss = criterion(logits, paddle.to_tensor([labels]))
        loss.backward()
        assert float(loss) == pytest.approx(expected, rel=1e-6)
        counted = np.array([label != -100 for label in labels]) & (losses > 1e-9) & (expected > 0)
        assert ((logits.grad[0] != 0).all(-1).numpy() == counted).all()
        assert paddle.isfinite(logits.grad).all()


def test_safetensors_are_read_without_stride_kernels(tmp_path):
    file = str(tmp_path / "model.safetensors")
    save_file({"numbers": paddle.arange(6, dtype="float32").cpu()}, file)
    before = paddle.get_flags("FLAGS_use_stride_kernel")
    paddle.set_flags({"FLAGS_use_stride_kernel": False})
    try:
        opened = safe_open(file, framework="paddle", device="cpu")
        if paddle_release.at_least(3, 1):  # before, safetensors reads what it can
            with pytest.raises(RuntimeError, match="view_dtype"):
                opened.get_tensor("numbers")
        assert stored.Stored(tmp_path)["numbers"].tolist() == [0, 1, 2, 3, 4, 5]
        assert not paddle.get_flags("FLAGS_use_stride_kernel")["FLAGS_use_stride_kernel"]
    finally:
        paddle.set_flags(before)


WHERE = """
import sys
import paddle
from llm_npu.patches import operators
if sys.argv[1] == "patched":
    operators.apply()
chosen = paddle.where(paddle.to_tensor([True, False]), 0.5, -1.0)
print(chosen.dtype, chosen.tolist())
"""


@pytest.mark.slow
def test_numbers_of_where_are_in_single_precision(run_python):
    assert run_python("-c", WHERE, "patched").stdout == "paddle.float32 [0.5, -1.0]\n"
    upstream = run_python("-c", WHERE, "upstream").stdout
    assert upstream == f"paddle.float{64 if paddle_release.before(3, 2) else 32} [0.5, -1.0]\n"


FLASHMASK = """
import sys
import paddle
import paddle.nn.functional as F
sys.path.insert(0, sys.argv[2])
import library
from llm_npu.patches import operators
if sys.argv[1] == "patched":
    operators.apply()
from paddle.nn.functional.flash_attention import flashmask_attention as imported_later
functions = [F.flashmask_attention, F.flash_attention.flashmask_attention]
functions += [library.flashmask_attention, imported_later]
rows = paddle.to_tensor([2, 2, 5, 5, 5], dtype="int32").reshape([1, 1, 5, 1])
for device in ("cpu", "npu"):
    paddle.set_device(device)
    x = paddle.ones([1, 5, 1, 8])
    for arguments in ({}, {"startend_row_indices": rows}):
        for function in functions:
            try:
                out = function(query=x, key=x, value=x * paddle.arange(5.0).reshape([1, 5, 1, 1]),
                    causal=True, **arguments)
                print(device, [round(value, 2) for value in out[0, :, 0, 0].tolist()])
            except (RuntimeError, ValueError) as error:
                print(device, any(words in str(error) for words in ("is not registered", "FLAGS_cudnn")))
"""


@pytest.mark.slow
def test_flashmask_attention_by_its_upstream_name(run_python, tmp_path):
    file = tmp_path / "flashmask.py"
    file.write_text(FLASHMASK)
    # As PaddleFormers has it.
    (tmp_path / "library.py").write_text(
        "from paddle.nn.functional.flash_attention import flashmask_attention\n"
    )

    def printed(patch):
        done = run_python("-m", "virtual_npu", file, patch, tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.splitlines()

    assert printed("upstream") == ["cpu True"] * 8 + ["npu True"] * 8
    causal, packed = [0.0, 0.5, 1.0, 1.5, 2.0], [0.0, 0.5, 2.0, 2.5, 3.0]
    patched = printed("patched")
    assert patched[:8] == ["cpu True"] * 8
    assert patched[8:] == [f"npu {causal}"] * 4 + [f"npu {packed}"] * 4
