"""Two ranks: an asynchronous all_reduce whose result is read with and without a wait, and a small training.

python deferred_program.py
"""

import paddle
import paddle.distributed as dist
import ranks

SIZE = 1000


def sum_of_ranks(waits: bool) -> float:
    x = paddle.full([SIZE], float(dist.get_rank() + 1))
    task = dist.all_reduce(x, sync_op=False)
    if waits:
        task.wait()
    doubled = x * 2
    value = float(doubled.sum()) / SIZE
    task.wait()
    return value


def losses() -> list[float]:
    paddle.seed(0)
    model = paddle.nn.Sequential(
        paddle.nn.Embedding(10, 8), paddle.nn.LayerNorm(8), paddle.nn.Dropout(0.1), paddle.nn.Linear(8, 10)
    )
    optimizer = paddle.optimizer.AdamW(
        0.01, parameters=model.parameters(), grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0)
    )
    losses = []
    for _ in range(3):
        tokens = paddle.randint(0, 10, [4, 6])
        logits = model(tokens).reshape([-1, 10])
        loss = paddle.nn.functional.cross_entropy(logits, tokens.reshape([-1]))
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


def error_of_a_kernel() -> str:
    try:
        paddle.take_along_axis(paddle.ones([4]), paddle.to_tensor([7]), 0).numpy()
    except Exception as error:
        return type(error).__name__
    return ""


if __name__ == "__main__":
    paddle.set_device("npu")
    dist.init_parallel_env()
    report = {
        "without": sum_of_ranks(waits=False),
        "with": sum_of_ranks(waits=True),
        "losses": losses(),
        "error": error_of_a_kernel(),
    }
    ranks.write(report)
