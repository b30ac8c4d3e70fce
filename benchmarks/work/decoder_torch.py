"""The decoder in torch: scaled_dot_product_attention on padded sequences, or on one packed sequence."""

import torch
import torch.nn.functional as F


class Step:
    """One evaluation or one training step."""

    def __init__(self, work, tensors):
        work.refuse((*work.padded, "packed loop"))
        self.work = work
        self.parameters = {name: torch.nn.Parameter(tensors.pop(name)) for name in work.shapes}
        arrays = {name: tensors[name].numpy() for name in ("tokens", "targets", "lengths")}
        *batch, lengths = work.batched(arrays)
        self.batch, self.lengths = [torch.from_numpy(array) for array in batch], lengths.tolist()
        self.loss = self._loss
        self.optimizer = torch.optim.SGD(self.parameters.values(), work.rate)

    def compiled(self):
        self.loss = torch.compile(self._loss, dynamic=False)
        return self

    def __call__(self, _):
        with torch.set_grad_enabled(self.work.is_training):
            value = self.loss(*self.batch)
            if self.work.is_training:
                self.optimizer.zero_grad(set_to_none=True)
                value.backward()
                self.optimizer.step()
        return (value.detach(),)

    def _loss(self, tokens, targets, positions):
        p, is_padded = self.parameters, tokens.ndim == 2
        x = F.embedding(tokens, p["embedding"], padding_idx=self.work.pad)
        x = x + F.embedding(positions[0] if is_padded else positions, p["position"])
        mask = (
            (tokens != self.work.pad)[:, None, None, :] if is_padded and not self.work.is_training else None
        )
        for i in range(self.work.depth):
            qkv = self._linear(f"{i}.qkv", self._norm(x, f"{i}.norm1"))
            mixed = self._padded(qkv, mask) if is_padded else self._one_by_one(qkv)
            x = x + self._linear(f"{i}.proj", mixed)
            x = x + self._linear(f"{i}.fc2", F.gelu(self._linear(f"{i}.fc1", self._norm(x, f"{i}.norm2"))))
        logits = self._linear("output", x)
        return F.cross_entropy(
            logits.view(-1, self.work.vocabulary), targets.flatten(), ignore_index=self.work.pad
        )

    def _linear(self, name, x):
        return F.linear(x, self.parameters[name].T, self.parameters[f"{name}.bias"])

    def _norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.parameters[name], None, self.work.epsilon)

    def _padded(self, qkv, mask):
        """[B, S, 3 N D] -> [B, S, N D]."""
        q, k, v = (part.unflatten(-1, (-1, self.work.head_dim)).transpose(1, 2) for part in qkv.chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.work.is_training)
        return out.transpose(1, 2).flatten(2)

    def _one_by_one(self, qkv):
        """[T, 3 N D] -> [T, N D]."""
        return torch.cat([self._padded(part[None], None)[0] for part in qkv.split(self.lengths)])
