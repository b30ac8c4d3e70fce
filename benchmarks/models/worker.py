"""The requests that a contender's process answers (see ``benchmarks.worker``).

losses          runs training steps and returns their losses
train           runs a training step and returns its seconds
train_memory    runs a training step and returns the peak bytes of tensors on the device
train_launches  runs a training step and returns the kernels launched on the device
logits, prefill, decode, generation_memory
                the same for generation
"""

import time

from benchmarks.models.size import ModelSize
from benchmarks.step import AdamWSettings


class ModelWorker:
    """PaddleNLP's model on the virtual NPU with the fused operators ``kernels``; upstream if there are none.

    ``fused_adamw``: use ``paddle_fused.FusedAdamW`` as the optimizer.
    """

    def __init__(self, kernels: list[str] | str, fused_adamw: bool, threads: int, dtype: str, size: dict):
        import virtual_npu

        virtual_npu.activate()
        import paddle

        from llm_npu import patches, surgery
        from llm_npu.models.paddlenlp import families

        patches.apply()  # without the patches two upstream families do not run
        paddle.set_device("npu")
        paddle.base.core.set_num_threads(threads)
        self.paddle, self.size = paddle, ModelSize(**size)
        self.version = f"paddle {paddle.__version__}"
        family = self.size.family
        config = families.config_class(family).from_dict({"model_type": family, **self.size.fields()})
        self.model = families.model_class(family)(config)
        self.size.fill(dict(self.model.named_parameters()))
        if dtype != "float32":
            self.model.to(dtype=dtype)
        if kernels:
            surgery.apply_fused_kernels(self.model, kernels, strict=True)
        self.dtype, self.fused_adamw = dtype, fused_adamw
        self.optimizer = None  # its moments are needed for training only
        samples = self.size.samples()
        self.inputs, self.labels = (paddle.to_tensor(part) for part in (samples[:, :-1], samples[:, 1:]))
        self.prompts = paddle.to_tensor(self.size.prompts())

    def losses(self, steps):
        return [self._step() for _ in range(steps)]

    def train(self):
        return self._seconds(self._step)

    def train_memory(self):
        return self._peak(self._step)

    def train_launches(self):
        import virtual_npu

        virtual_npu.reset_kernel_record()
        self._step()
        return sum(record.calls for record in virtual_npu.kernel_record())

    def logits(self):
        """Some logits of the prompts' last tokens: [B][16]."""
        self.model.eval()
        with self.paddle.no_grad():
            answer = self.model(self.prompts)
        last = (answer[0] if isinstance(answer, tuple) else answer)[:, -1]
        return last.astype("float32").numpy()[:, :: max(1, self.size.vocabulary // 16)][:, :16].tolist()

    def prefill(self):
        """Seconds until the first new token."""
        return self._seconds(lambda: self._generate(1))

    def decode(self):
        """Seconds of the new tokens after the first one."""
        ends = []  # end times of the model's calls; the first call reads the prompts
        hook = self.model.register_forward_post_hook(lambda *_: ends.append(self._now()))
        try:
            self._generate(1 + self.size.new_tokens)
        finally:
            hook.remove()
        return ends[-1] - ends[0]

    def generation_memory(self):
        return self._peak(lambda: self._generate(1 + self.size.new_tokens))

    def _step(self):
        self.model.train()
        self.optimizer = self.optimizer or self._adamw()
        answer = self.model(self.inputs, labels=self.labels)
        loss = answer[0] if isinstance(answer, tuple) else answer
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad(set_to_zero=False)
        return float(loss)

    def _adamw(self):
        from paddle_fused import FusedAdamW

        settings = AdamWSettings()
        upstream = self.paddle.optimizer.AdamW(
            settings.learning_rate,
            epsilon=settings.epsilon,
            parameters=self.model.parameters(),
            weight_decay=settings.weight_decay,
            grad_clip=self.paddle.nn.ClipGradByGlobalNorm(settings.clip_norm),
            multi_precision=self.dtype != "float32",
        )
        return FusedAdamW.from_adamw(upstream) if self.fused_adamw else upstream

    def _generate(self, new_tokens):
        self.model.eval()
        with self.paddle.no_grad():
            self.model.generate(
                input_ids=self.prompts,
                attention_mask=self.paddle.ones_like(self.prompts),
                max_new_tokens=new_tokens,
                decode_strategy="greedy_search",
                use_cache=True,
                eos_token_id=self.size.vocabulary,  # none: every sequence gets all its tokens
                pad_token_id=0,
            )

    def _seconds(self, run):
        began = self._now()
        run()
        return self._now() - began

    def _now(self):
        self.paddle.device.synchronize()
        return time.perf_counter()

    def _peak(self, run):
        self.paddle.device.reset_max_memory_allocated()
        run()
        self.paddle.device.synchronize()
        return self.paddle.device.max_memory_allocated()
