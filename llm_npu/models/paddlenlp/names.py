"""Names that differ between the libraries, for PaddleNLP. Importing it imports no framework."""

from __future__ import annotations

from collections.abc import Mapping

TITLE = "PaddleNLP"
# Trackers that only this library has, and the packages they need.
TRACKERS: Mapping[str, str] = {}
# Fields of a model's configuration.
TENSOR_PARALLEL, PIPELINE_PARALLEL = "tensor_parallel_degree", "pipeline_parallel_degree"
UNDIVIDED: dict[str, object] = {}  # further fields of a model that is whole on one process
DIVIDED: dict[str, object] = {}  # fields of a model that is split over processes
LENGTH = "seq_length"  # length of the rows of a batch
# Fields that are not part of a config.json.
UNSAVED: tuple[str, ...] = (TENSOR_PARALLEL, "use_dualpipev")
# Matrices stored as in Hugging Face files; all others are transposed.
UNTRANSPOSED = ("embed_tokens.weight",)
# How a batch passes document masks to the model (``Collator.mask``); None: depends on fused attention.
PACKED: str | None = None
# Fields that switch off the library's default fused operators.
UNFUSED: Mapping[str, bool] = {}
# Whether ``generate`` passes the prompt to a streamer before the new tokens.
STREAMS_PROMPT = False
# {training argument of the library: flag}, if the names differ.
RENAMED: Mapping[str, str] = {}
# {flag: default}, if it differs from PaddleNLP's.
DEFAULTS: Mapping[str, object] = {}
