"""Each patch of PaddleFormers: the defect is there without it, and gone with it."""

import json

import pytest

# A program that runs everything twice: what fails first, and what fails with the patches.
PROGRAM = """
import importlib
import json

import paddle
from llm_npu.patches import operators
from llm_npu.patches import paddleformers as patches
from llm_npu.patches.paddleformers import without_cuda

SIZES = dict(
    vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
TOKENS = paddle.to_tensor([[5, 6, 7, 8], [0, 9, 10, 11]])


def modeling(family):
    return importlib.import_module(f"paddleformers.transformers.{family}.modeling")


def llama(**settings):
    from paddleformers.transformers.llama.configuration import LlamaConfig

    config = LlamaConfig(**SIZES)
    config._attn_implementation = "eager"
    for name, value in settings.items():
        setattr(config, name, value)
    model = modeling("llama").LlamaForCausalLM(config)
    model.eval()
    return model


def norm():
    llama()(input_ids=TOKENS)


def masks():
    model = llama(fuse_rms_norm=False)
    mask = (TOKENS != 0).astype("int64")
    model.generate(input_ids=TOKENS, attention_mask=mask, max_new_tokens=3, decode_strategy="greedy_search")


def gate():
    from paddleformers.transformers.qwen3_moe.configuration import Qwen3MoeConfig

    config = Qwen3MoeConfig(
        **SIZES, head_dim=32, moe_intermediate_size=32, num_experts=2, num_experts_per_tok=1
    )
    config._attn_implementation, config.fuse_rms_norm = "eager", False
    paddle.set_default_dtype("bfloat16")
    try:
        modeling("qwen3_moe").Qwen3MoeForCausalLMDeprecated(config)(input_ids=TOKENS)
    finally:
        paddle.set_default_dtype("float32")


def plain_classes():
    from paddleformers.transformers import AutoModelForCausalLM
    from paddleformers.transformers.qwen3.configuration import Qwen3Config

    config = Qwen3Config(**SIZES, head_dim=32, architectures=["Qwen3ForCausalLM"])
    model = AutoModelForCausalLM.from_config(config)
    assert type(model).__name__ == "Qwen3ForCausalLM", type(model)


def padding():
    operators.fix_flashmask_attention()
    mask = (TOKENS != 0).astype("int64")
    models = [llama(fuse_rms_norm=False, _attn_implementation=name) for name in ("flashmask", "eager")]
    models[0].set_state_dict(models[1].state_dict())
    found = [model(input_ids=TOKENS, attention_mask=mask)[0][1, 1:] for model in models]
    assert paddle.allclose(*found, atol=1e-5), "padding is seen"


def eager_stages():
    from paddleformers.nn.attention.interface import ALL_ATTENTION_FUNCTIONS

    layer, x = paddle.nn.Layer(), paddle.randn([1, 2, 3, 4])
    out = [ALL_ATTENTION_FUNCTIONS[name](layer, x, x, x, scaling=0.5)[0] for name in ("eager", "sdpa")]
    assert float((out[0] - out[1]).abs().max()) < 1e-6, "later tokens are seen"
    # A single query sees all keys, and so does every query of a layer that is not causal.
    for query, layer.is_causal in ((x[:, :, :1], True), (x, False)):
        weights = ALL_ATTENTION_FUNCTIONS["eager"](layer, query, x, x, scaling=0.5)[1]
        assert (weights > 0).all()


def sliding_rows():
    from paddleformers.transformers import masking_utils

    writes, upstream = [], paddle.Tensor.__setitem__
    paddle.Tensor.__setitem__ = lambda *arguments: (writes.append(1), upstream(*arguments))
    try:
        for rows in ([[8], [3], [8], [8], [5]], [[8, 8], [3, 6], [8, 8], [8, 8], [5, 7]]):
            rows = paddle.to_tensor(rows, dtype="int32").reshape([1, 1, 5, -1])
            window = masking_utils.prepare_sliding_window_startend_row_indices(rows, 2)
            assert window[..., 0].tolist() == [[[2, 3, 4, 5, 5]]] and window.dtype == paddle.int32
            assert (window[..., 1:] == rows[..., 1:]).all()
    finally:
        paddle.Tensor.__setitem__ = upstream
    assert not writes, f"{len(writes)} elements are written one by one"


def stages():
    from paddle.distributed.fleet.meta_parallel import LayerDesc
    from paddle.distributed.fleet.meta_parallel.parallel_layers.pp_layers import SegmentLayers
    from paddleformers.nn.pp_model import make_decoder_layer_pipe
    from paddleformers.transformers.ernie4_5.configuration import Ernie4_5Config

    assert Ernie4_5Config(pp_seg_method="uniform").pp_seg_method == "uniform"
    layer = LayerDesc(make_decoder_layer_pipe(modeling("ernie4_5").Ernie4_5DecoderLayer))
    assert SegmentLayers([layer] * 2, 2, Ernie4_5Config().pp_seg_method).do_segment() == [0, 1, 2]


def cpu_synchronize():
    device = paddle.device.get_device()
    paddle.set_device("cpu")
    try:
        paddle.device.synchronize()
    finally:
        paddle.set_device(device)


def stage_labels():
    from paddleformers.transformers.deepseek_v3.configuration import DeepseekV3Config

    criterion = modeling("deepseek_v3").DeepseekV3PretrainingCriterionPipe(DeepseekV3Config(vocab_size=8))
    logits, labels = paddle.randn([2, 3, 8]), paddle.to_tensor([[1, 2, 3], [4, 5, 6]])
    assert criterion(logits, labels) == criterion(logits, (labels, None))


VISION = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2, out_hidden_size=64)


def vision_classes():
    from paddleformers.transformers import AutoModelForConditionalGeneration, Qwen3VLConfig

    text = dict(SIZES, head_dim=32, rope_scaling={"rope_type": "default", "mrope_section": [8, 4, 4]})
    config = Qwen3VLConfig(text_config=text, vision_config=dict(VISION, deepstack_visual_indexes=[]))
    config.architectures = ["Qwen3VLForConditionalGeneration"]
    model = AutoModelForConditionalGeneration.from_config(config)
    assert type(model).__name__ == "Qwen3VLForConditionalGeneration", type(model)


def vision_recompute():
    from paddleformers.transformers.qwen3_vl.configuration import Qwen3VLVisionConfig

    paddle.seed(1)
    config = Qwen3VLVisionConfig(**VISION, num_position_embeddings=4, deepstack_visual_indexes=[])
    config._attn_implementation = "eager"
    tower = modeling("qwen3_vl").Qwen3VLVisionModel(config)
    pixels, grid, gradients = paddle.randn([4, 24]), paddle.to_tensor([[1, 2, 2]], place="cpu"), []
    for granularity in (None, "full"):
        config.recompute_granularity = granularity
        config.recompute_method, config.recompute_num_layers = "uniform", 1
        tower(pixels, grid)[0].square().sum().backward()
        gradients.append([weight.grad for weight in tower.parameters() if weight.grad is not None])
        tower.clear_gradients()
    for plain, recomputed in zip(*gradients, strict=True):
        assert paddle.equal_all(plain, recomputed)


def biases():
    import tempfile
    from pathlib import Path

    from paddleformers.transformers import Qwen2_5_VLConfig
    from safetensors.numpy import load_file

    paddle.seed(1)
    text = dict(SIZES, rope_scaling={"type": "mrope", "mrope_section": [8, 4, 4]})
    family = modeling("qwen2_5_vl").Qwen2_5_VLForConditionalGeneration
    model = family(Qwen2_5_VLConfig(text_config=text, vision_config=VISION))
    for name, weight in model.named_parameters():
        if name.endswith("qkv_proj.bias"):  # which are 0 at first
            weight.set_value(paddle.randn(weight.shape))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, save_to_hf=True)
        (file,) = Path(folder).glob("*.safetensors")
        stored = "model.layers.0.self_attn.k_proj.bias" in load_file(file)
        assert stored, "biases have other names"  # a load that fails once fails always
        loaded = family.from_pretrained(folder, load_checkpoint_format="flex_checkpoint")
    for name, weight in loaded.state_dict().items():
        assert paddle.equal_all(weight, model.state_dict()[name]), name


def failures(**probes):
    found = {}
    for name, probe in probes.items():
        try:
            probe()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


IMPORTS = {
    "provider": lambda: modeling("qwen3"),
    "ops": lambda: importlib.import_module("paddleformers.transformers.fused_a2a"),
    "router_losses": lambda: modeling("ernie4_5_moe"),
    "triton_kernels": lambda: modeling("paddleocr_vl"),
    "vision_provider": lambda: modeling("qwen3_vl_moe"),
}
first = failures(**IMPORTS)
without_cuda.supply_paddlefleet_ops()
without_cuda.supply_gpt_provider()
others = dict(norm=norm, masks=masks, gate=gate, plain_classes=plain_classes)
others |= dict(eager_stages=eager_stages, padding=padding, sliding_rows=sliding_rows, stages=stages)
others |= dict(stage_labels=stage_labels, cpu_synchronize=cpu_synchronize)
others |= dict(vision_classes=vision_classes, vision_recompute=vision_recompute, biases=biases)
first |= failures(**others)
patches.apply()
print("FOUND", json.dumps([first, failures(**IMPORTS, **others)]))
"""
SYMPTOMS = {
    "provider": "paddlefleet is required for gpt_provider",
    "ops": "No module named 'paddlefleet_ops'",
    "router_losses": "No module named 'paddleformers.nn.moe.npu_fusion_ops'",
    "triton_kernels": "name 'triton' is not defined",
    "vision_provider": "No module named 'paddlefleet'",
    "norm": "fused_rms_norm_ext` is not registered",
    "masks": "isn't consistent, the first tensor is bool, but 1th tensor is int32",
    "gate": "data we are trying to retrieve (float32) does not match the type of data",
    "plain_classes": "with paddlefleet, which is not installed",
    "eager_stages": "later tokens are seen",
    "padding": "padding is seen",
    "sliding_rows": "10 elements are written one by one",
    "stages": "weight_idxs' length should be greater than 0",
    "stage_labels": "The 'shape' in ReshapeOp is invalid",
    "cpu_synchronize": "device should be gpu, xpu",
    "vision_classes": "No module named 'paddlefleet'",
    "vision_recompute": "unexpected keyword argument 'attn_mask_startend_row_indices'",
    "biases": "biases have other names",
}


@pytest.fixture(scope="module")
def outcomes(run_python, tmp_path_factory):
    program = tmp_path_factory.mktemp("patches") / "program.py"
    program.write_text(PROGRAM)
    done = run_python("-m", "virtual_npu", program)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return json.loads(line.removeprefix("FOUND "))


@pytest.mark.parametrize("name", SYMPTOMS)
def test_without_its_patch_it_fails_and_with_it_it_works(outcomes, name):
    before, after = outcomes
    assert SYMPTOMS[name] in before[name]
    assert name not in after


def test_installed_packages_are_left_alone(run_program, tmp_path):
    """Packages of these names, empty, stand for the real ones."""
    for name in ("paddlefleet", "paddlefleet_ops"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    done = run_program(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from llm_npu.patches.paddleformers import without_cuda
        without_cuda.apply()
        import paddlefleet_ops
        assert paddlefleet_ops.__file__ is not None
        assert not hasattr(paddlefleet_ops, "is_deep_ep_available")
        assert without_cuda.PROVIDER not in sys.modules
        """
    )
    assert done.returncode == 0, done.stderr
