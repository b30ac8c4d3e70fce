"""These tests need PaddleFormers, which shares no environment with PaddleNLP."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("paddleformers") else ["*"]
