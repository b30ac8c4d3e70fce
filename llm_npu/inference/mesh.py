"""Distribute a model over several ranks for inference, with the same parallelism as in training.

    mesh = Mesh(tensor=2, pipeline=2)
    mesh.check("output/checkpoint-100")            # validates before loading; imports no framework
    ...                                            # on each of 4 ranks
    mesh.join()
    model = mesh.load_model("output/checkpoint-100")

``tensor`` ranks shard each layer, and split its key/value cache by heads. ``pipeline`` stages hold
consecutive layers (``parts``). All ranks call ``generate`` with the same arguments and get the same tokens.

Importing this module imports no framework.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from llm_npu.core.errors import UserError
from llm_npu.models import degrees, other_library, presets
from llm_npu.models.families import FAMILIES

ANNOTATED = ("llama", "qwen2")  # families that the auto-parallel plan supports
# The libraries' layers draw initial weights from these generators; the checkpoint overwrites the weights.
GENERATORS = ("global_seed", "local_seed")
FIRST_SEED = 1 << 20  # fleet.init uses seeds below 1 << 16; all seeds must differ


@dataclass(frozen=True)
class Mesh:
    """Degrees of tensor and pipeline parallelism; rank ``p * tensor + t`` is rank t of stage p.

    Attributes:
        auto: shard PaddleNLP's single-device model by annotations, as in auto-parallel training. Otherwise
            the library's tensor-parallel layers are used.
        to_static: with ``auto``, run static programs without a key/value cache.
    """

    tensor: int = 1
    pipeline: int = 1
    auto: bool = False
    to_static: bool = False

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.tensor * self.pipeline

    def check(self, folder: str | Path) -> None:
        """Raise UserError if the checkpoint in ``folder`` cannot be split by these degrees."""
        if self.auto:
            other_library.refuse_flag("enable_auto_parallel")
        if self.to_static and not (self.auto and self.ranks > 1):
            raise UserError(
                "--to_static needs an annotated model; add --enable_auto_parallel and "
                "--tensor_parallel_degree"
            )
        if self.to_static and self.pipeline > 1:
            raise UserError(
                "--to_static needs a single stage; remove --pipeline_parallel_degree or --to_static"
            )
        if self.ranks == 1:
            return
        fields = presets.fields_of(str(folder))
        family = FAMILIES[fields["model_type"]]
        config = SimpleNamespace(**(family.defaults | fields))
        degrees.check_tensor_parallel(family, config, self.tensor, folder)
        degrees.check_stages(config, self.pipeline, folder)
        if self.pipeline > 1 and not family.generates_in_stages:
            raise UserError(
                f"--pipeline_parallel_degree does not support inference of {family.title} ({folder}); "
                "use --tensor_parallel_degree"
            )
        if self.auto and family.model_type not in ANNOTATED:
            raise UserError(
                f"--enable_auto_parallel does not support {family.title} ({folder}); accepted: "
                f"{', '.join(FAMILIES[name].title for name in ANNOTATED)}. Remove --enable_auto_parallel."
            )

    def join(self) -> None:
        """Initialize this rank's communication. Collective; set the device and apply the patches first."""
        from paddle import distributed
        from paddle.distributed import fleet
        from paddle.distributed.fleet import meta_parallel

        if self.auto:
            distributed.init_parallel_env()
            return
        strategy = fleet.DistributedStrategy()
        strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": self.tensor, "pp_degree": self.pipeline}
        fleet.init(is_collective=True, strategy=strategy)
        tracker = meta_parallel.get_rng_state_tracker()
        for seed, name in enumerate(GENERATORS, FIRST_SEED):
            if name not in tracker.states_:
                tracker.add(name, seed)

    def load_model(self, folder: str | Path, dtype: str | None = None):
        """Load this rank's part of a checkpoint's model. The checkpoint may come from any mesh.

        Arguments and errors as in ``pretrained.load_model``, plus the errors of ``check``.
        """
        self.check(folder)
        from paddle import distributed

        from llm_npu.models import pretrained
        from llm_npu.parallel.mesh import Degrees

        from . import parts

        if self.ranks == 1:
            return pretrained.load_model(folder, dtype)
        if self.auto:
            mesh = Degrees(tp=self.tensor, pp=self.pipeline)
            model = parts.load_placed(folder, dtype, mesh, self.to_static)
        else:
            model = parts.load_split(folder, dtype, self.pipeline)
        # The library's sampling broadcasts the token from the first rank of this group.
        model.pp_group = distributed.new_group(list(range(self.ranks)))
        return model
