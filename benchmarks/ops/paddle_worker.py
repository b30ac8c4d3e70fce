"""The Paddle contenders: fused on the CPU place or the virtual NPU, composed, and Paddle's own kernels."""

import numpy as np

from benchmarks.ops.worker import OperatorWorker
from benchmarks.work import Unavailable
from paddle_fused import paddle_release


class PaddleWorker(OperatorWorker):
    """``device``: "cpu" or "npu". ``contender``: "fused", "composed" or "paddle" (see Work.paddle)."""

    def __init__(self, device: str, contender: str, threads: int):
        import paddle_fused
        import virtual_npu

        if device == "npu":
            virtual_npu.activate()
        import paddle

        super().__init__(f"paddle {paddle.__version__}")
        paddle.set_device(device)
        paddle.base.core.set_num_threads(threads)
        paddle.seed(0)
        if contender != "paddle":
            # Strict: only this backend is timed, without fallback.
            paddle_fused.use_backend("native" if contender == "fused" else "composed", strict=True)
        self.paddle, self.contender, self.is_npu = paddle, contender, device == "npu"
        self.refusal = paddle_fused.BackendError

    def function(self, work, arrays, dtype, backward):
        if self.contender == "paddle" and dtype != "float32":
            raise Unavailable("Paddle's CPU kernels do not support bfloat16")
        tensors = {}
        for name in list(arrays):
            tensors[name] = self._tensor(arrays.pop(name), "float32" if name in work.keep_float32 else dtype)
        for name in work.variables:
            tensors[name].stop_gradient = not backward
        run = work.paddle(tensors, self.contender)
        variables = [tensors[name] for name in work.variables] if backward else []
        arriving = [tensors.get(f"d{name}") for name in work.outputs]

        def both():
            outputs = run()
            results = dict(zip(work.outputs, outputs, strict=True))
            if variables:
                gradients = self._gradients(outputs, variables, arriving)
                results.update(
                    (f"d{name}", value) for name, value in zip(work.variables, gradients, strict=True)
                )
            return results

        def refused_or_run():
            try:
                return both()
            except self.refusal as error:
                reasons = "; ".join(error.reasons.values())
                raise Unavailable(reasons.splitlines()[0]) from error
            except (NotImplementedError, TypeError) as error:
                # Before 3.3, attention on the CPU place supports neither causal nor bool masks.
                if self.contender != "paddle" or paddle_release.at_least(3, 3):
                    raise
                raise Unavailable(str(error).strip().splitlines()[-1]) from error

        return refused_or_run

    def _gradients(self, outputs, variables, arriving):
        """The gradients of ``variables``; ``arriving`` are the gradients of the outputs, None for ones."""
        from benchmarks.graph_end import graph_end

        if any(gradient is None for gradient in arriving):
            return self.paddle.grad(outputs, variables, arriving)
        return self.paddle.grad([graph_end(outputs, arriving)], variables)

    def _tensor(self, array, dtype):
        tensor = self.paddle.to_tensor(array)
        return tensor.astype(dtype) if array.dtype == np.float32 and dtype != "float32" else tensor

    def wait(self):
        if self.is_npu:
            self.paddle.device.synchronize()

    def sample(self, work, name, tensor):
        return tensor.astype("float32").numpy()[work.samples(name)]
