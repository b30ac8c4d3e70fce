"""The torch contenders: eager, and through torch.compile."""

from benchmarks.ops.worker import OperatorWorker
from benchmarks.work import Unavailable


class TorchWorker(OperatorWorker):
    def __init__(self, compiled: bool, threads: int):
        try:
            import torch
        except ImportError as error:
            raise Unavailable("not installed") from error
        super().__init__(f"torch {torch.__version__}")
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.torch, self.compiled = torch, compiled

    def function(self, work, arrays, dtype, backward):
        torch = self.torch
        tensors = {}
        for name in list(arrays):
            tensors[name] = self._tensor(work, name, arrays.pop(name), dtype)
        for name in work.variables:
            tensors[name].requires_grad_(backward)
        run = work.torch(tensors)
        if self.compiled:
            torch.compiler.reset()
            run = self._or_unavailable(work.compiled_by_torch(run))
        variables = [tensors[name] for name in work.variables] if backward else []
        arriving = [tensors.get(f"d{name}") for name in work.outputs]

        def both():
            with torch.set_grad_enabled(bool(variables)):
                outputs = run(tensors)
            results = dict(zip(work.outputs, outputs, strict=True))
            if variables:
                gradients = torch.autograd.grad(outputs, variables, arriving)
                results.update(
                    (f"d{name}", value) for name, value in zip(work.variables, gradients, strict=True)
                )
            return results

        return both

    def _or_unavailable(self, run):
        """Wrap ``run``: a case that torch.compile does not support is unavailable instead of a failure."""
        unsupported = self.torch._dynamo.exc.TorchDynamoException

        def guarded(tensors):
            try:
                return run(tensors)
            except unsupported as error:
                raise Unavailable(f"torch.compile: {str(error).strip().splitlines()[0]}") from error

        return guarded

    def _tensor(self, work, name, array, dtype):
        tensor = self.torch.from_numpy(work.to_torch(name, array)).contiguous()
        is_kept = not tensor.is_floating_point() or name in work.keep_float32
        return tensor if is_kept else tensor.to(getattr(self.torch, dtype))

    def sample(self, work, name, tensor):
        return work.from_torch(name, tensor.detach().float().numpy())[work.samples(name)]
