"""A model on several ranks for inference, split as in training.

    mesh = Mesh(tensor=2, pipeline=2)
    mesh.check("output/checkpoint-100")            # before anything is loaded; imports no framework
    ...                                            # on each of 4 ranks
    mesh.join()
    model = mesh.load_model("output/checkpoint-100")

``tensor`` ranks share each layer and split its key/value cache by heads; ``pipeline`` stages hold consecutive
layers (``parts``). All ranks call ``generate`` with the same arguments, and all get its tokens.

Importing this module imports no framework.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from llm_npu.core.errors import UserError
from llm_npu.models import degrees, other_library, presets
from llm_npu.models.families import FAMILIES

ANNOTATED = ("llama", "qwen2")  # families that the plan of auto-parallel places
# The libraries' layers draw initial weights from these generators; the checkpoint's replace them.
GENERATORS = ("global_seed", "local_seed")
FIRST_SEED = 1 << 20  # fleet.init draws its seeds below 1 << 16, and all must differ


@dataclass(frozen=True)
class Mesh:
    """The degrees of tensor and pipeline parallelism; rank ``p * tensor + t`` is rank t of stage p.

    Attributes:
        auto: annotations split PaddleNLP's single-device model, as in auto-parallel training; otherwise the
            library's own tensor-parallel layers are used.
        to_static: with ``auto``, compute by programs, without a cache.
    """

    tensor: int = 1
    pipeline: int = 1
    auto: bool = False
    to_static: bool = False

    @property
    def ranks(self) -> int:
        """The ranks that together hold the model once."""
        return self.tensor * self.pipeline

    def check(self, folder: str | Path) -> None:
        """UserError if the model of the checkpoint in ``folder`` cannot be split by these degrees."""
        if self.auto:
            other_library.refuse_flag("enable_auto_parallel")
        if self.to_static and not (self.auto and self.ranks > 1):
            raise UserError(
                "--to_static makes programs of an annotated model; give --enable_auto_parallel and "
                "--tensor_parallel_degree as well"
            )
        if self.to_static and self.pipeline > 1:
            raise UserError(
                "--to_static generates without stages; leave --pipeline_parallel_degree or --to_static out"
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
                f"--pipeline_parallel_degree is given, but {folder} is a {family.title}, which is not cut "
                "into stages for inference; give --tensor_parallel_degree"
            )
        if self.auto and family.model_type not in ANNOTATED:
            raise UserError(
                f"--enable_auto_parallel is given, but {folder} is a {family.title}; accepted: "
                f"{', '.join(FAMILIES[name].title for name in ANNOTATED)}. Leave --enable_auto_parallel out"
            )

    def join(self) -> None:
        """Set up the communication of this rank; collective. The device is set, the patches are applied."""
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
        """This rank's part of the model of a checkpoint, which any mesh may have written, for ``generate``.

        Arguments and errors as of ``pretrained.load_model``, and errors as of ``check``.
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
        # The library's sampling broadcasts the token of this group's first rank.
        model.pp_group = distributed.new_group(list(range(self.ranks)))
        return model
