"""PaddleOCR-VL: memory and time of its vision tower, projector and text, as PaddleFormers trains it.

The text model is a normal decoder. A patch of an image is a token of the vision tower, whose layers have
LayerNorm, biases and GELU, and attend to all patches of an image. The projector merges `MERGED` x `MERGED`
patches into one token of the text. Weights without a gradient have no states and no gradients; LoRA trains
its own matrices in every linear layer except the head.
"""

from __future__ import annotations

import dataclasses
import itertools
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from llm_npu.core import cards
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from llm_npu.models.paddleformers.vision_language import PADDLEOCR_VL, PROJECTOR, TEXT, VISION_TOWER

from . import answer, cost
from .interval import OWN_MEMORY, interval, may_fit
from .layout import Layout
from .memory_model import memory
from .memory_model.decoder_layer import STATISTICS, WORKING, Sizes
from .memory_model.gathered import HALF, SINGLE
from .memory_model.ledger import Ledger
from .search import Found
from .shape import ModelShape
from .step_model import program
from .step_model.operations import Operation
from .step_model.stage import Stage, matmul

MERGED = 2
PACKED_POSITIONS = 32768  # rows of a table that PaddleFormers builds and does not use
FREEZES = {"freeze_vision": VISION_TOWER, "freeze_aligner": PROJECTOR}
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
OF_TEXT = (*SIZES, "vocab_size", "num_key_value_heads", "head_dim")
OF_VISION = (*SIZES, "image_size", "patch_size")
FLAGS = ("image_patches", "text_tokens", "freeze_config", "lora_rank")
SPLITS = ("cards", "per_device_train_batch_size", "global_batch_size", "sharding", "recompute")
ACCEPTED = (*SPLITS, *FLAGS, "model_name_or_path", "card", "json")
GELU, BIAS, PLACE = ((4, 1), (6, 1)), ((4, 1), (2, 1)), (4, 1)  # as stage.TRAFFIC
WITHOUT_LORA = ("lm_head", "patches")
OF_WEIGHTS = (".weight_gradient", "accumulate")  # operations for gradients of weights
GRADIENTS = frozenset({"d weight", "wide d weight", "d head", "wide d head", "embedding", "wide embedding"})


class Text(ModelShape):
    """The decoder: a linear layer for each of query, key, value, gate and up."""

    fuses_projections = logits_in_float32 = False


class Run(Layout):
    """PaddleFormers computes all logits, also large ones."""

    def has_logits(self, shape: ModelShape) -> bool:
        return True


class WithoutWeights(Ledger):
    """Omits the gradients of frozen weights."""

    def take(self, name: str, size: float, part: str = "activations") -> None:
        if name not in GRADIENTS:
            super().take(name, size, part)


class Tower(Stage):
    """The operations of the vision tower and of the projector; ``shape`` and ``layout`` count patches."""

    rope = ((24, 7), (24, 7))  # composed: split, negate, join, two products and their sum

    def attended(self) -> float:
        return 1.0

    def layer_weights(self) -> float:
        return sum(tower_layer(self.shape))

    def linear(self, name: str, m: int, k: int, n: int) -> Iterator[Operation]:
        yield matmul(name, m, k, n)
        yield self.vector(f"{name}.bias", m * n, BIAS[0])

    def linear_backward(self, name: str, m: int, k: int, n: int, **fields) -> Iterator[Operation]:
        yield self.vector(f"{name}.bias", m * n, BIAS[1], phase="backward")
        yield from super().linear_backward(name, m, k, n, **fields)

    def feed_forward(self) -> Iterator[Operation]:
        yield from self.linear("mlp.up", self.tokens, self.hidden, self.inner)
        yield self.vector("mlp.gelu", self.tokens * self.inner, GELU[0])
        yield from self.linear("mlp.down", self.tokens, self.inner, self.hidden)

    def feed_forward_backward(self) -> Iterator[Operation]:
        yield from self.linear_backward("mlp.down", self.tokens, self.inner, self.hidden)
        yield self.vector("mlp.gelu", self.tokens * self.inner, GELU[1], phase="backward")
        yield from self.linear_backward("mlp.up", self.tokens, self.hidden, self.inner)

    def encoder(self, pixels: int) -> Iterator[Operation]:
        """The tower's forward and backward pass; ``pixels``: the values of a patch."""
        yield from self.linear("patches", self.tokens, pixels, self.hidden)
        yield self.residual()  # adds the positions
        layers = [
            *self.layer(),
            *(self.recomputed() if self.layout.recompute else ()),
            *self.layer_backward(),
        ]
        for operation in layers:
            if operation.name != "attention.split":  # query, key and value have their own products
                yield operation._replace(times=operation.times * self.shape.num_hidden_layers)
        yield self.norm("final_norm")
        yield self.norm("final_norm", backward=True)
        yield matmul("patches.weight_gradient", pixels, self.tokens, self.hidden, phase="backward")

    def projector(self, out: int) -> Iterator[Operation]:
        """The projector's forward and backward pass into ``out`` columns."""
        rows, width = self.tokens // MERGED**2, self.hidden * MERGED**2
        yield self.norm("norm")
        yield self.vector("merge", rows * width, PLACE)
        yield from self.linear("projector.up", rows, width, width)
        yield self.vector("gelu", rows * width, GELU[0])
        yield from self.linear("projector.down", rows, width, out)
        yield self.vector("place", rows * out, PLACE)
        yield from self.linear_backward("projector.down", rows, width, out)
        yield self.vector("gelu", rows * width, GELU[1], phase="backward")
        yield from self.linear_backward("projector.up", rows, width, width)
        yield self.vector("merge", rows * width, PLACE, phase="backward")
        yield self.norm("norm", backward=True)


def tower_layer(shape: ModelShape) -> list[int]:
    """The elements of each weight of a layer of the vision tower."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    return [*[hidden**2, hidden] * 4, hidden * inner, inner, inner * hidden, *[hidden] * 5]


@dataclass(frozen=True)
class Plan:
    """A run of the model with the sizes in ``config``, a config.json.

    Attributes:
        grid: rows and columns of patches of an image.
        frozen: the parts without trained weights.
        run: the layout; a sample is an image with its text.
    """

    name: str
    config: Mapping
    grid: tuple[int, int]
    frozen: frozenset[str]
    lora_rank: int
    run: Run

    @cached_property
    def text(self) -> Text:
        sizes = {name: self.config[name] for name in OF_TEXT}
        return Text(
            self.name,
            PADDLEOCR_VL.model_type,
            max_position_embeddings=self.run.max_seq_length,
            planned_only=True,
            **sizes,
        )

    @cached_property
    def vision(self) -> ModelShape:
        sizes = {name: self.config["vision_config"][name] for name in SIZES}
        heads = {"num_key_value_heads": sizes["num_attention_heads"], "attention_bias": True}
        return ModelShape("", "", 0, max_position_embeddings=0, **sizes, **heads)

    @property
    def pixels(self) -> int:
        return 3 * self.config["vision_config"]["patch_size"] ** 2

    @property
    def patches(self) -> int:
        return self.run.per_device_train_batch_size * self.grid[0] * self.grid[1]

    def weights(self) -> dict[str, list[int]]:
        """The elements of each weight, by part, without `PACKED_POSITIONS`."""
        hidden, of_vision = self.vision.hidden_size, self.config["vision_config"]
        merged, out = hidden * MERGED**2, self.text.hidden_size
        positions = (of_vision["image_size"] // of_vision["patch_size"]) ** 2
        tower = [self.pixels * hidden, hidden, positions * hidden, hidden, hidden]
        return {
            VISION_TOWER: tower + tower_layer(self.vision) * self.vision.num_hidden_layers,
            PROJECTOR: [hidden, hidden, merged**2, merged, merged * out, out],
            TEXT: list(memory.weights(self.text, self.run, 0)),
        }

    def lora(self) -> list[int]:
        """The elements of each of LoRA's matrices."""
        text, vision, merged = self.text, self.vision, self.vision.hidden_size * MERGED**2
        hidden, query, key = text.hidden_size, text.query_size, text.key_value_size
        wide, inner = vision.hidden_size, vision.intermediate_size
        sides = [hidden, query, hidden, key, hidden, key, query, hidden] * text.num_hidden_layers
        sides += [hidden, text.intermediate_size] * 3 * text.num_hidden_layers
        sides += [*[wide] * 8, wide, inner, inner, wide] * vision.num_hidden_layers
        return [side * self.lora_rank for side in [*sides, merged, merged, merged, hidden]]

    def trained(self) -> list[int]:
        """The elements of each weight that has a gradient."""
        parts = self.weights()
        of_parts = (sizes for part, sizes in parts.items() if part not in self.frozen)
        return self.lora() if self.lora_rank else [*itertools.chain(*of_parts)]

    def memory(self) -> memory.Memory:
        """The memory of a step, tensor by tensor as ``memory_model``."""
        run, z, trained = self.run, Sizes(self.text, self.run), tuple(self.trained())
        ledger = WithoutWeights() if self.lora_rank else Ledger()
        memory.states(ledger, trained, memory.owned_weights(trained, (), run), run, z.gathered)
        every = sum(map(sum, self.weights().values())) + PACKED_POSITIONS * self.vision.hidden_size
        ledger.take("frozen weights", HALF * (every + sum(self.lora()) - sum(trained)), "weights")
        ledger.take("images", SINGLE * self.pixels * self.patches, "samples")
        ledger.end("between steps")
        kept, values, inner = self.of_tower()
        if VISION_TOWER not in self.frozen:
            # With LoRA, the first layer's input has no gradient, so PaddleFormers does not recompute it.
            recomputed = self.vision.num_hidden_layers - (self.lora_rank > 0) if run.recompute else 0
            ledger.take("vision tower", values + HALF * self.pixels * self.patches, VISION_TOWER)
            whole = self.vision.num_hidden_layers - recomputed
            ledger.take("layers of the tower", recomputed * values + whole * kept, VISION_TOWER)
        if PROJECTOR not in self.frozen or VISION_TOWER not in self.frozen:
            ledger.take("projector", 4 * values, PROJECTOR)
        memory.micro_batch(ledger, self.text, run, z)
        if VISION_TOWER not in self.frozen:
            ledger.give("projector")
            weight = self.vision.hidden_size * self.vision.intermediate_size
            ledger.take("last layer", (kept if run.recompute else 0) + 2 * values + 2 * inner, WORKING)
            ledger.take("d weight", HALF * weight, WORKING)
            ledger.take("wide d weight", SINGLE * weight, WORKING)
            ledger.end("backward, vision tower")
        if run.replicas > run.sharding_degree:
            ledger.give("vision tower", "layers of the tower", "last layer", "d weight", "wide d weight")
            ledger.take("joined", SINGLE * sum(trained), "fused gradient buffer")
            ledger.end("gradients sent")
        return memory.Memory((memory.StageMemory(0, tuple(ledger.moments)),))

    def of_tower(self) -> tuple[int, int, int]:
        """Bytes that a layer of the tower saves, of its result, and of its inner values."""
        values = HALF * self.patches * self.vision.hidden_size
        inner = HALF * self.patches * self.vision.intermediate_size
        rows = self.patches * SINGLE * (2 * STATISTICS * self.vision.num_attention_heads + 2 * 2)
        return 8 * values + 2 * inner + rows, values, inner

    def operations(self) -> dict[str, list[Operation]]:
        """The operations of a micro batch by part."""
        layout = dataclasses.replace(self.run, max_seq_length=self.grid[0] * self.grid[1], cards=1)
        layout = dataclasses.replace(layout, sharding="", global_batch_size=0)
        tower = Tower(self.vision, layout)
        parts = {
            VISION_TOWER: tower.encoder(self.pixels),
            PROJECTOR: tower.projector(self.text.hidden_size),
            TEXT: program.micro_batch(self.text, self.run),
        }
        return {part: [*self.executed(part, operations)] for part, operations in parts.items()}

    def executed(self, part: str, operations) -> Iterator[Operation]:
        """``operations`` without those that frozen weights do not need, and with those of LoRA."""
        for operation in operations:
            if operation.phase != "forward" and {part, VISION_TOWER} <= self.frozen:
                continue  # no gradient passes the part
            if (self.lora_rank or part in self.frozen) and operation.name.endswith(OF_WEIGHTS):
                continue
            if self.lora_rank and part == VISION_TOWER and operation.phase == "recompute":  # see `memory`
                layers = self.vision.num_hidden_layers
                operation = operation._replace(times=operation.times // layers * (layers - 1))
            yield operation
            if self.lora_rank and operation.kind == "matmul" and not operation.name.startswith(WITHOUT_LORA):
                (m, k), (_, n) = operation.shapes
                again = {"phase": operation.phase, "times": operation.times}
                for sides in ((m, k, self.lora_rank), (m, self.lora_rank, n)):
                    for _ in range(2 if operation.phase == "backward" else 1):
                        yield matmul(operation.name, *sides, **again)

    def time(self, card: cards.Card) -> cost.StepTime:
        """The time of a step, with the shares of the parts as its kinds of computation."""
        fit, run, text = cost.fitted(), self.run, Stage(self.text, self.run)
        parts = self.operations()
        tallies = {part: cost.tally(operations, run, card, fit) for part, operations in parts.items()}
        device = sum(total.device for total in tallies.values())
        wait = max(0.0, sum(total.kernels for total in tallies.values()) * fit.host - device)
        weights = float(sum(self.trained()))
        end = [*program.update(text, weights, weights / run.sharding_degree)]
        end += program.exchange(text, weights) if run.replicas > 1 else []
        ends = cost.tally(end, run, card, fit)
        whole = run.micro_batches * (device + wait) + ends.device
        speed = run.tokens_per_step / whole / run.cards
        counted = [op for part in parts.values() for op in part if op.phase != "recompute"]
        flops = run.micro_batches * sum(operation.flops * operation.times for operation in counted)
        return cost.StepTime(
            whole, speed, flops / whole / card.peak,
            compute={part: run.micro_batches * total.device for part, total in tallies.items()},
            communication=ends.exposed, hidden=0.0, bubble=0.0, host=run.micro_batches * wait,
            optimizer=sum(ends.compute.values()),
        )  # fmt: skip


def plan_of(options: Namespace) -> Plan:
    """The run that the command line describes. Raises UserError for unmodeled flags or bad sizes."""
    selected = {name: value for name, value in vars(options).items() if value not in (None, False)}
    if refused := sorted(selected.keys() - set(ACCEPTED)):
        accepted = ", ".join(f"--{name}" for name in (*SPLITS, *FLAGS))
        raise UserError(
            f"--{refused[0]} is not modeled for {PADDLEOCR_VL.title}; accepted: {accepted}. Omit it."
        )
    if options.sharding not in (None, "stage1"):
        raise UserError(f"--sharding is {options.sharding!r}, but {PADDLEOCR_VL.title} needs stage1")
    if not options.image_patches or options.text_tokens is None:
        raise UserError(
            f"{PADDLEOCR_VL.title} needs the sizes of its samples; add --image_patches ROWSxCOLUMNS and "
            "--text_tokens"
        )
    rows, columns = options.image_patches
    sizes = (rows // MERGED, columns // MERGED, options.text_tokens, options.lora_rank or 1)
    if rows % MERGED or columns % MERGED or min(sizes) < 1:
        raise UserError(
            f"--image_patches is {rows}x{columns}, --text_tokens {options.text_tokens} and --lora_rank "
            f"{options.lora_rank}; accepted: even rows and columns, and whole numbers of 1 or more"
        )
    words = (options.freeze_config or "").split()
    if set(words) - FREEZES.keys() or (words and options.lora_rank):
        raise UserError(
            f"--freeze_config is {options.freeze_config!r}; accepted: {' '.join(FREEZES)}, one or both, "
            "without --lora_rank"
        )
    fields = {name: value for name, value in selected.items() if name in SPLITS}
    run = Run(max_seq_length=rows * columns // MERGED**2 + options.text_tokens, **fields)
    frozen = frozenset(FREEZES[word] for word in words)
    config = read_config(options.model_name_or_path)
    return Plan(options.model_name_or_path, config, (rows, columns), frozen, options.lora_rank or 0, run)


def read_config(folder: str) -> Mapping:
    """The config.json of ``folder``. Raises ValueError if it has no size of the weights."""
    config = plain_json.mapping(f"{folder}/config.json")
    of_vision = config.get("vision_config")
    parts = ((config, OF_TEXT), (of_vision if isinstance(of_vision, dict) else {}, OF_VISION))
    for part, names in parts:
        for name in names:
            if type(part.get(name)) is not int or part[name] < 1:
                raise UserError(
                    f"{folder}/config.json has {name} {part.get(name)!r}, but a whole number of 1 or more is "
                    "needed in both the text and the vision_config; use the published file"
                )
    return config


def planned(options: Namespace) -> answer.Answer:
    """The answer; if the run does not fit, with the largest micro batch that fits with recompute."""
    plan, card = plan_of(options), cards.card(options.card, "bfloat16")
    run, held, change = plan.run, plan.memory(), None
    limit = answer.usable(card, run)
    if not may_fit(held.peak_memory_bytes, limit, OWN_MEMORY):
        for rows in range(run.per_device_train_batch_size, 0, -1):
            if run.per_device_train_batch_size % rows == 0:
                smaller = dataclasses.replace(run, per_device_train_batch_size=rows, recompute=True)
                other = dataclasses.replace(plan, run=smaller)
                if may_fit((less := other.memory()).peak_memory_bytes, limit, OWN_MEMORY):
                    change = Found(smaller, other.time(card).step_time_s, less)
                    break
    width = interval(plan.text, run, card)
    return answer.Answer(plan.text, run, card, plan.time(card), held, limit, width, change)
