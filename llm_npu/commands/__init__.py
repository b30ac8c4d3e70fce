"""Commands that train and use models, and the doctor; ``llm_npu.__main__`` has the table of all commands.

They attach the tools to a run. Importing this package imports no framework.
"""

from pathlib import Path

PROGRAM = str(Path(__file__).resolve().parents[1] / "__main__.py")  # the program that a command's ranks run
