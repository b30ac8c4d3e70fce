"""Training steps of a small Llama, as PaddleNLP has it and with nothing fused."""

import time


class LlamaTraining:
    """A PaddleNLP Llama with its optimizer on one place; those built alike start from the same weights."""

    def __init__(self, place, hidden, layers, length):
        import numpy as np
        import paddle
        from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

        self.place = place
        paddle.set_device(place)
        config = LlamaConfig(
            vocab_size=4096,
            hidden_size=hidden,
            intermediate_size=hidden * 11 // 4,
            num_hidden_layers=layers,
            num_attention_heads=8,
            max_position_embeddings=length,
            seq_length=length,
            use_flash_attention=False,
            use_fused_rms_norm=False,
            use_fused_rope=False,
            use_cache=False,
        )
        self.model = LlamaForCausalLM(config)
        self.model.train()
        rng = np.random.default_rng(0)
        for parameter in self.model.parameters():
            noise = rng.standard_normal(parameter.shape, dtype="float32") * 0.02
            parameter.set_value(noise if parameter.ndim > 1 else 1 + noise)
        tokens = rng.integers(0, config.vocab_size, (1, length + 1))
        self.inputs = paddle.to_tensor(tokens[:, :-1])
        self.labels = paddle.to_tensor(tokens[:, 1:])
        self.optimizer = paddle.optimizer.AdamW(1e-4, parameters=self.model.parameters(), weight_decay=0.01)

    def step(self):
        """One training step; returns (seconds, loss). Reading the loss waits for the device."""
        import paddle

        paddle.set_device(self.place)
        began = time.perf_counter()
        output = self.model(self.inputs, labels=self.labels)
        loss = output[0] if isinstance(output, (tuple, list)) else output
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        value = float(loss)
        return time.perf_counter() - began, value
