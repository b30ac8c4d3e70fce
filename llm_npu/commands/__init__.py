"""The commands that train and use models, and the doctor; ``llm_npu.__main__`` has the table of all commands.

They stand above the tools, which they attach to a run. Importing this package imports no framework.
"""

from pathlib import Path

PROGRAM = str(Path(__file__).resolve().parents[1] / "__main__.py")  # what the ranks of a command run
