"""Float32 gradients keep the loss scale of fp16.

``GradScaler`` divides ``grad`` by the loss scale, and with ``amp_master_grad`` the gradients are in
``main_grad``. ``_wrap_amp_model`` tells the scaler so, by ``MixPrecisionScaler``, only where processes
split the model or its optimizer. In one process and in data parallelism the gradients stay 32,768 times
too large: AdamW hides it, but every step is clipped, and a step whose gradients are infinite is taken.

:versions: paddleformers 1.2.0
:device: npu
:at:
    paddleformers/trainer/trainer.py:634 `paddle.amp.GradScaler(init_loss_scaling=self.args.scale_loss)`
:prints:
    after one step: [-255.0, 129.0]
:should print:
    after one step: [0.75, 1.125]
:change:
    Unscale ``main_grad`` here, too. ``MixPrecisionScaler`` cannot in a single process, because it asks
    fleet for the parallel groups; it should do so only where fleet has been initialised.
:workaround: llm_npu.patches.gradients.unscale_master_gradients
"""

import tempfile

import paddle
from paddleformers.trainer import Trainer, TrainingArguments


class Rows(paddle.io.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return {"x": paddle.to_tensor([0.5, -0.25]).numpy()}


class Model(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(2, 1, paddle.nn.initializer.Constant(1.0), bias_attr=False)

    def forward(self, x):
        return (self.linear(x).astype("float32").mean(),)  # its gradient is x


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    device="npu",
    fp16=True,
    fp16_opt_level="O2",
    amp_master_grad=True,
    scale_loss=1024.0,
    max_steps=1,
    report_to=[],
)
model = Model()
optimizer = paddle.optimizer.SGD(0.5, parameters=model.parameters())
Trainer(model=model, args=arguments, train_dataset=Rows(), optimizers=(optimizer, None)).train()
print("after one step:", model.linear.weight.astype("float32").flatten().tolist())
