"""PaddleNLP's LlamaForCausalLM: upstream on the CPU, or its weights with the fused operators.

In 16 bits, weights have float32 master weights, and the moments are float32, as in the trainer.
"""

from __future__ import annotations

from benchmarks.step import AdamWSettings, LlamaSize, Training

EPSILON = 1e-6


class PaddleLlama(Training):
    """A training step of PaddleNLP's Llama.

    Args:
        model: "upstream" or "fused".
        device: "cpu" or "npu".
        cured: apply the virtual NPU's patches of upstream Paddle on the CPU place as well: MKL's fast path on
            processors of other vendors than Intel.
        threads: None leaves the setting unchanged.
    """

    def __init__(
        self, model: str, device: str, cured: bool, dtype: str, size: dict, threads: int | None = None
    ):
        import virtual_npu

        if cured:
            virtual_npu.activate()
        import paddle

        import paddle_fused

        paddle.set_device(device)
        if threads:
            paddle.base.core.set_num_threads(threads)
        self.paddle, self.size, self.device = paddle, LlamaSize(**size), device
        self.version = f"paddle {paddle.__version__}"
        self.model = self._build(dtype)
        self.loss = self._upstream_loss
        if model == "fused":
            paddle_fused.use_backend("native")  # the same kernels on both places
            self.loss = FusedLoss(self.model, self.size)
        optimizer = paddle.optimizer.AdamW if model == "upstream" else paddle_fused.FusedAdamW
        settings = AdamWSettings()
        self.optimizer = optimizer(
            settings.learning_rate,
            epsilon=settings.epsilon,
            parameters=self.model.parameters(),
            weight_decay=settings.weight_decay,
            grad_clip=paddle.nn.ClipGradByGlobalNorm(settings.clip_norm),
            multi_precision=dtype != "float32",
        )
        samples = self.size.samples()
        self.inputs, self.labels = (paddle.to_tensor(part) for part in (samples[:, :-1], samples[:, 1:]))

    def _build(self, dtype: str):
        from llm_npu.models.paddlenlp import families

        size = self.size
        config = families.config_class("llama")(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            intermediate_size=size.intermediate,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            max_position_embeddings=size.length,
            seq_length=size.length,
            rms_norm_eps=EPSILON,
            use_flash_attention=False,
            use_fused_rms_norm=False,
            use_fused_rope=False,
            use_cache=False,
        )
        model = families.model_class("llama")(config)
        initial = size.weights()
        for name, parameter in _named(model).items():
            parameter.set_value(initial.pop(name))
        assert not initial, list(initial)
        if dtype != "float32":
            model.to(dtype=dtype)
        model.train()
        return model

    def _upstream_loss(self, inputs, labels):
        return self.model(inputs, labels=labels)[0]

    def step(self):
        self.paddle.set_device(self.device)  # another model in this process may have changed it
        loss = self.loss(self.inputs, self.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad(set_to_zero=False)  # as in torch: nothing is filled or added
        if self.device == "npu":
            self.paddle.device.synchronize()
        return float(loss)


def _named(model) -> dict:
    """PaddleNLP's parameters by the names of LlamaSize.shapes."""
    llama = model.llama
    named = {"embedding": llama.embed_tokens.weight, "norm": llama.norm.weight, "head": model.lm_head.weight}
    for number, layer in enumerate(llama.layers):
        attention, mlp = layer.self_attn, layer.mlp
        of_layer = {
            "query": attention.q_proj,
            "key": attention.k_proj,
            "value": attention.v_proj,
            "output": attention.o_proj,
            "gate": mlp.gate_proj,
            "up": mlp.up_proj,
            "down": mlp.down_proj,
            "attention_norm": layer.input_layernorm,
            "mlp_norm": layer.post_attention_layernorm,
        }
        named |= {f"{number}.{name}": module.weight for name, module in of_layer.items()}
    return named


class FusedLoss:
    """Computes the loss with the model's weights and the fused operators."""

    def __init__(self, model, size: LlamaSize):
        import paddle

        import paddle_fused

        self.paddle, self.ops, self.model, self.size = paddle, paddle_fused, model, size
        self.causal = paddle_fused.masks.causal()
        like = paddle.zeros([1], model.lm_head.weight.dtype)
        self.cos, self.sin = model.llama.layers[0].self_attn.rotary_emb(like, seq_len=size.length)

    def __call__(self, inputs, labels):
        ops, llama = self.ops, self.model.llama
        hidden = llama.embed_tokens(inputs)
        for layer in llama.layers:
            normed = ops.rms_norm(hidden, layer.input_layernorm.weight, EPSILON)
            attended = self._attention(layer.self_attn, normed)
            normed, hidden = ops.add_rms_norm(
                attended, hidden, layer.post_attention_layernorm.weight, EPSILON
            )
            mlp = layer.mlp
            hidden = hidden + mlp.down_proj(ops.swiglu(mlp.gate_proj(normed), mlp.up_proj(normed)))
        logits = self.model.lm_head(ops.rms_norm(hidden, llama.norm.weight, EPSILON))
        # In float32, as in PaddleNLP's criterion: bfloat16 has 8 bits for a loss.
        return self.paddle.nn.functional.cross_entropy(logits.astype("float32"), labels.unsqueeze(-1))

    def _attention(self, attention, hidden):
        shape = [self.size.batch, self.size.length, self.size.heads, self.size.head_dim]
        query, key, value = (
            project(hidden).reshape(shape)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, key = (self.ops.rotary_mul(tensor, self.cos, self.sin) for tensor in (query, key))
        out = self.ops.flash_attention(query, key, value, self.causal)
        return attention.o_proj(out.reshape(hidden.shape))
