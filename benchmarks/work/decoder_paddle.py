"""The decoder in Paddle: with paddle_fused on packed sequences, with plain operators on padded ones."""

import paddle
import paddle.nn.functional as F


def step(work, tensors, contender):
    """One evaluation or one training step."""
    is_fused = contender != "paddle"
    work.refuse(("packed varlen", "packed mask") if is_fused else work.padded)
    make = paddle.base.framework.EagerParamBase.from_tensor
    parameters = {name: make(tensors.pop(name)) for name in work.shapes}
    arrays = {name: tensors[name].numpy() for name in ("tokens", "targets", "lengths")}
    *batch, lengths = work.batched(arrays)
    batch = [paddle.to_tensor(array) for array in batch]
    loss = _fused(work, parameters, lengths) if is_fused else _plain(work, parameters)
    if not work.is_training:
        return lambda: (_without_gradient(loss, batch),)
    optimizer = paddle.optimizer.SGD(work.rate, list(parameters.values()))

    def train():
        value = loss(*batch)
        value.backward()
        optimizer.step()
        optimizer.clear_grad(set_to_zero=False)
        return (value.detach(),)

    return train


@paddle.no_grad()
def _without_gradient(loss, batch):
    return loss(*batch)


def _heads(work, qkv):
    """query, key and value [..., N, D] of [..., 3 N D]."""
    parts = qkv.split(3, -1)
    return [part.reshape([*part.shape[:-1], work.width // work.head_dim, work.head_dim]) for part in parts]


def _plain(work, p):
    """The loss of padded sequences [B, S], with Paddle's own operators."""

    def loss(tokens, targets, positions):
        x = F.embedding(tokens, p["embedding"], padding_idx=work.pad) + F.embedding(
            positions[0], p["position"]
        )
        mask = None if work.is_training else (tokens != work.pad)[:, None, None, :]
        for i in range(work.depth):
            qkv = F.linear(_norm(work, x, p[f"{i}.norm1"]), p[f"{i}.qkv"], p[f"{i}.qkv.bias"])
            mixed = F.scaled_dot_product_attention(*_heads(work, qkv), mask, is_causal=work.is_training)
            x = x + F.linear(mixed.reshape(x.shape), p[f"{i}.proj"], p[f"{i}.proj.bias"])
            x = x + _mlp(p, i, _norm(work, x, p[f"{i}.norm2"]))
        logits = F.linear(x, p["output"], p["output.bias"])
        return F.cross_entropy(
            logits.reshape([-1, work.vocabulary]), targets.flatten(), ignore_index=work.pad
        )

    return loss


def _norm(work, x, weight):
    return F.layer_norm(x, x.shape[-1:], weight, None, work.epsilon)


def _mlp(p, i, x):
    return F.linear(F.gelu(F.linear(x, p[f"{i}.fc1"], p[f"{i}.fc1.bias"])), p[f"{i}.fc2"], p[f"{i}.fc2.bias"])


def _fused(work, p, lengths):
    """The loss of packed sequences [T], with paddle_fused for attention and for residuals with norms."""
    from paddle_fused import dropout_add_layer_norm, flash_attention, masks

    lengths = lengths.tolist()
    ends = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    if work.strategy == "packed varlen":
        mask = masks.causal() if work.is_training else None
        where = {"layout": "TND", "cu_seqlens_q": ends, "cu_seqlens_k": ends}
    else:
        mask, where = masks.documents(lengths, causal=work.is_training), {"layout": "TND"}

    def added(x, residual, weight):
        return dropout_add_layer_norm(x, residual, weight, None, 0.0, work.epsilon, prenorm=True)

    def loss(tokens, targets, positions):
        x = F.embedding(tokens, p["embedding"], padding_idx=work.pad)
        normal, x = added(x, F.embedding(positions, p["position"]), p["0.norm1"])
        for i in range(work.depth):
            qkv = F.linear(normal, p[f"{i}.qkv"], p[f"{i}.qkv.bias"])
            mixed = flash_attention(*_heads(work, qkv), mask, **where)
            branch = F.linear(mixed.reshape(x.shape), p[f"{i}.proj"], p[f"{i}.proj.bias"])
            normal, x = added(branch, x, p[f"{i}.norm2"])
            branch = _mlp(p, i, normal)
            if i + 1 < work.depth:
                normal, x = added(branch, x, p[f"{i + 1}.norm1"])
        logits = F.linear(x + branch, p["output"], p["output.bias"])
        return F.cross_entropy(logits, targets, ignore_index=work.pad)

    return loss
