"""A program of several ranks: trains a tiny Llama in some way, stores it, and goes on from what is stored.

    checkpoint_ranks.py FOLDER WAY...

A way is one of WAYS: what splits the model. All ways of one call have the same degrees. For each of them:

- 4 steps in one go, with a checkpoint after 2: "whole_run";
- 2 steps from the checkpoint in a model of another seed: "resumed", which must be the same bit for bit;
- the checkpoint loaded into a model that no rank has split, and stored again: "stored_again" says whether the
  files are the same byte by byte; "unsplit" are the losses of 2 steps of that model;
- the same from the unsplit model's checkpoint back into the split one: "back".
"""

import hashlib
import sys
from pathlib import Path

import virtual_npu

virtual_npu.activate()

import numpy as np  # noqa: E402
import paddle  # noqa: E402
import ranks as launcher  # noqa: E402
from paddle.distributed import fleet  # noqa: E402
from paddle.distributed.fleet.meta_optimizers import HybridParallelOptimizer  # noqa: E402
from paddle.distributed.fleet.utils import mix_precision_utils  # noqa: E402
from paddle.distributed.sharding import group_sharded_parallel  # noqa: E402
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM, LlamaForCausalLMPipe  # noqa: E402

from llm_npu import patches, surgery  # noqa: E402
from llm_npu.core.ranks import Ranks, mesh  # noqa: E402
from llm_npu.core.tensor_file import Reader  # noqa: E402
from llm_npu.models import layout, weights  # noqa: E402
from llm_npu.training.checkpoint import gathering, path_of, saving, tensors  # noqa: E402
from llm_npu.training.checkpoint.__main__ import merge  # noqa: E402
from llm_npu.training.checkpoint.disks import Disks  # noqa: E402
from llm_npu.training.checkpoint.training import export_model  # noqa: E402

FP32 = (
    "tensor_fp32",
    "stage1_fp32",
    "stage1_split_fp32",
)  # the others are in bfloat16, with fp32 master weights and gradients
# way -> (tensor, pipeline, sharding), level of sharding
WAYS = {
    "tensor_fp32": ((2, 1, 1), None),
    "data": ((1, 1, 1), None),
    "tensor": ((2, 1, 1), None),
    "pipeline": ((1, 2, 1), None),
    "pipeline_tied": ((1, 2, 1), None),  # the embedding is the head, too: both stages have it
    "stage1": ((1, 1, 2), "stage1"),
    "stage1_split": ((1, 1, 2), "split"),
    "stage1_fp32": ((1, 1, 2), "stage1"),
    "stage1_split_fp32": ((1, 1, 2), "split"),
    "stage2": ((1, 1, 2), "os_g"),
    "stage3": ((1, 1, 2), "p_g_os"),
    "tensor_stage1": ((2, 1, 2), "stage1"),
    "tensor_stage1_split": ((2, 1, 2), "split"),
    "tensor_pipeline": ((2, 2, 1), None),
    "pipeline_stage1": ((1, 2, 2), "stage1"),
}
VOCABULARY, LENGTH, BATCH = 128, 16, 4
FILES = ("model.safetensors", "optimizer.safetensors")


def llama(split: bool, seed: int, tied: bool = False):
    """A Llama, with fused projections in a split one and plain ones in one that is not."""
    groups = fleet.get_hybrid_communicate_group()
    degree = groups.get_model_parallel_world_size() if split else 1
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=tied,
        fuse_attention_qkv=split,
        fuse_attention_ffn=split,
        tensor_parallel_degree=degree,
        tensor_parallel_rank=groups.get_model_parallel_rank() if split else 0,
        tensor_parallel_output=False,
    )
    paddle.seed(seed)
    pipeline = split and groups.get_pipe_parallel_world_size() > 1
    model = (LlamaForCausalLMPipe if pipeline else LlamaForCausalLM)(config)
    paddle.seed(seed)  # the ranks have drawn different numbers of random numbers
    for name, parameter in model.named_parameters():
        if "norm" in name:  # ones would hide a norm that is left out
            parameter.set_value(paddle.rand(parameter.shape) + 0.5)
    if (
        pipeline
    ):  # the stages of PaddleNLP's pipelines make masks on an NPU that its own attention cannot take
        surgery.apply_fused_kernels(model, ["attention"])
    return model


class Run:
    """A model and its optimizer, split in ``way``, or on every rank as a whole with ``unsplit``."""

    def __init__(self, way: str, seed: int, unsplit: bool = False):
        self.low, tied = way not in FP32, way.endswith("tied")
        way = None if unsplit else way
        self.groups = fleet.get_hybrid_communicate_group()
        self.pipeline = way is not None and self.groups.get_pipe_parallel_world_size() > 1
        self.model = llama(way is not None, seed, tied)
        self.schedule = paddle.optimizer.lr.LinearWarmup(3e-3, 4, 1e-3, 3e-3)
        self.optimizer = paddle.optimizer.AdamW(
            learning_rate=self.schedule,
            parameters=self.model.parameters(),
            weight_decay=0.1,
            multi_precision=True,
            apply_decay_param_fun=None,
        )
        self.way, self.wrapped = way, self.model

    def wrap(self) -> None:
        if self.low:
            self.model, self.optimizer = paddle.amp.decorate(
                self.model, self.optimizer, level="O2", dtype="bfloat16"
            )
        self.wrapped = self.model
        if self.way is None:
            return
        if self.low and self.way != "data":  # DataParallel adds up the gradients in bfloat16 only
            mix_precision_utils.MixPrecisionLayer(self.model, dtype="bfloat16")  # gradients in fp32
            self.optimizer = mix_precision_utils.MixPrecisionOptimizer(self.optimizer)
        level = WAYS[self.way][1]
        if level in ("os_g", "p_g_os"):
            self.wrapped, self.optimizer, _ = group_sharded_parallel(
                self.model,
                self.optimizer,
                level=level,
                group=self.groups.get_sharding_parallel_group(),
                segment_size=2**11,
            )
            return
        strategy = fleet.fleet._user_defined_strategy
        strategy.hybrid_configs["sharding_configs"].split_param = level == "split"
        self.wrapped = fleet.distributed_model(self.model)
        self.optimizer = HybridParallelOptimizer(self.optimizer, self.groups, strategy)

    def load(self, folder: Path) -> None:
        """As the Trainer does: the weights before the model is wrapped, the optimizer after it."""
        weights.load(self.model, folder)
        self.wrap()
        tensors.load(folder, "optimizer", self.held()["optimizer"])
        self.schedule.set_state_dict({"last_epoch": 1, "last_lr": 0.0})
        self.schedule.step()

    def held(self):
        named = layout.parameters(self.model)
        return {
            "model": tensors.of_parameters(named, self.model.config),
            "optimizer": tensors.of_optimizer(self.optimizer, named, self.model.config),
        }

    def step(self, number: int) -> float:
        ids = np.random.default_rng(number).integers(0, VOCABULARY, [BATCH, LENGTH + 1])
        if self.way is not None and not self.pipeline:
            share, size = (
                self.groups.get_sharding_parallel_rank(),
                self.groups.get_sharding_parallel_world_size(),
            )
            data, size2 = self.groups.get_data_parallel_rank(), self.groups.get_data_parallel_world_size()
            ids = ids[share * size2 + data :: size * size2]
        inputs, labels = paddle.to_tensor(ids[:, :-1]), paddle.to_tensor(ids[:, 1:])
        with paddle.amp.auto_cast(self.low, level="O2", dtype="bfloat16"):
            if self.pipeline:
                loss = self.wrapped.train_batch([(inputs, None), labels], self.optimizer)
                self.schedule.step()
                return float(loss)
            loss = self.wrapped(inputs, labels=labels)[0].astype("float32")
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        self.schedule.step()
        if self.way is not None:
            loss = loss.detach()
            paddle.distributed.all_reduce(loss)
            loss = loss / paddle.distributed.get_world_size()
        return float(loss)

    def steps(self, *numbers: int) -> list[str]:
        return [self.step(number).hex() for number in numbers]

    def save(self, folder: Path, step: int, behind: bool = False) -> saving.Saved:
        """Collective; ``behind`` has the training go on meanwhile, which must not change what is stored."""
        checkpoints = saving.Checkpoints(folder, Ranks.of_run(), async_save=behind)
        done = checkpoints.save(step, self.held())
        (saved,) = done or checkpoints.finish()
        return saved


def sums(folder: Path) -> list[str]:
    return [hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in FILES]


def on_two_disks(run: Run, folder: Path, stored: list[str]) -> dict[str, bool]:
    """Half of the ranks have a disk of their own: what is merged of both, and gathered on each, is stored."""
    ranks = Ranks.of_run()
    second = ranks.size // 2
    disks = Disks((0,) * second + (second,) * (ranks.size - second), ranks)
    own = folder / str(disks.own)
    checkpoints = saving.Checkpoints(own, ranks, async_save=True, disks=disks)
    checkpoints.save(2, run.held())
    checkpoints.finish()
    if ranks.first:
        merge([path_of(folder / str(disk), 2) for disk in disks.all], folder / "merged")
    there = [(path_of(own, 2) / file).exists() for file in FILES]
    gathered = sums(gathering.to_resume(True, own, disks))
    return {
        "merged": sums(path_of(folder / "merged", 2)) == stored and not any(there),
        "gathered": gathered == stored,
    }


def tried(way: str, folder: Path) -> dict:
    run = Run(way, seed=1)
    run.wrap()
    losses = run.steps(0, 1)
    run.save(folder, 2)
    stored = sums(path_of(folder, 2))
    report = on_two_disks(run, folder / "disks", stored)
    behind = saving.Checkpoints(folder / "behind", Ranks.of_run(), async_save=True)
    behind.save(2, run.held())
    losses += [run.step(2).hex()]
    behind.poll()
    behind.finish()
    report["behind"] = sums(path_of(folder / "behind", 2)) == stored
    export_model(run.model, folder / "exported")
    run.save(folder, 3)
    report["exported"] = (folder / "exported" / FILES[0]).read_bytes() == (
        path_of(folder, 3) / FILES[0]
    ).read_bytes()
    losses += [run.step(3).hex()]
    report["whole_run"] = losses
    run.save(folder, 4)
    final = sums(path_of(folder, 4))

    again = Run(way, seed=2)
    again.load(path_of(folder, 2))
    report["resumed"] = again.steps(2, 3)
    again.save(folder / "again", 4)
    report["same_end"] = sums(path_of(folder / "again", 4)) == final

    unsplit = Run(way, seed=3, unsplit=True)
    unsplit.load(path_of(folder, 2))
    unsplit.save(folder / "unsplit", 2)
    report["stored_again"] = sums(path_of(folder / "unsplit", 2)) == stored
    upstream, stored_weights = weights.to_upstream(unsplit.model), Reader([path_of(folder, 2) / FILES[0]])
    report["upstream"] = upstream.keys() == stored_weights.keys()
    report["upstream"] &= all((upstream[name] == stored_weights[name]).all() for name in upstream)
    report["unsplit"] = unsplit.steps(2, 3)

    back = Run(way, seed=4)
    back.load(path_of(folder / "unsplit", 2))
    report["back"] = back.steps(2, 3)
    return report


def main() -> None:
    folder, ways = Path(sys.argv[1]), sys.argv[2:]
    ((tensor, pipeline, sharding),) = {WAYS[way][0] for way in ways}
    patches.apply()
    strategy = fleet.DistributedStrategy()
    size = int(launcher.os.environ["PADDLE_TRAINERS_NUM"])
    strategy.hybrid_configs = {
        "dp_degree": size // (tensor * pipeline * sharding),
        "mp_degree": tensor,
        "pp_degree": pipeline,
        "sharding_degree": sharding,
    }
    strategy.pipeline_configs = {"accumulate_steps": 2, "micro_batch_size": BATCH // 2}
    fleet.init(is_collective=True, strategy=strategy)
    fleet.meta_parallel.model_parallel_random_seed(1)
    ways_tried = {way: tried(way, folder / way) for way in ways}
    launcher.write({"ways": ways_tried, "mesh": mesh()})


if __name__ == "__main__":
    main()
