"""PaddleNLP's names where those of the libraries differ. Importing it imports no framework."""

from __future__ import annotations

from collections.abc import Mapping

TITLE = "PaddleNLP"
# Trackers that the other library does not have, and the packages that they need.
TRACKERS: Mapping[str, str] = {}
# Fields of a model's configuration.
TENSOR_PARALLEL, PIPELINE_PARALLEL = "tensor_parallel_degree", "pipeline_parallel_degree"
UNDIVIDED: dict[str, object] = {}  # further fields of a model that one process has as a whole
DIVIDED: dict[str, object] = {}  # and of one that processes share
LENGTH = "seq_length"  # of the rows of a batch
# Those that are no part of a config.json.
UNSAVED: tuple[str, ...] = (TENSOR_PARALLEL,)
# Matrices whose parameters have the layout of the Hugging Face files; all others are transposed.
UNTRANSPOSED = ("embed_tokens.weight",)
# How a batch gives its documents to the model (``Collator.mask``); None: that depends on what is fused.
PACKED: str | None = None
# Fields that switch off fused operators which the library's models have by default.
UNFUSED: Mapping[str, bool] = {}
# Whether ``generate`` gives a streamer the prompt, before the new tokens.
STREAMS_PROMPT = False
# {a training argument of the library: the flag}, where the names differ.
RENAMED: Mapping[str, str] = {}
# {flag: its default, where it is not PaddleNLP's}.
DEFAULTS: Mapping[str, object] = {}
