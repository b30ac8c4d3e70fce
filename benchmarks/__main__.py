"""``python -m benchmarks NAME [arguments]``: runs one benchmark; only its modules are imported."""

import importlib
import sys

from paddle_fused import command_line

COMMANDS = {  # name: (module, description)
    "ops": ("ops.command", "every fused operator against the machine's limit, plain Paddle and PyTorch"),
    "step": ("step.command", "a training step of a Llama: tokens per second, Paddle and PyTorch"),
    "varlen": ("varlen", "sequences of different lengths: padding against packing"),
    "models": ("models.command", "PaddleNLP's models fused, by one operator, and unfused"),
    "overlap": ("overlap.command", "matmul and communication at the same time, on two ranks"),
    "device": ("device", "the virtual NPU's overhead against the CPU place"),
    "checks": ("checks", "planted bugs that VIRTUAL_NPU_CHECK finds, and false alarms"),
}


def main(words: list[str]) -> int:
    """The exit status: that of the benchmark, 2 for an unknown name, 130 after Ctrl-C."""
    name, *arguments = words or [""]
    if name in ("-h", "--help"):
        listed = "\n".join(f"    {name:9}{what}" for name, (_, what) in COMMANDS.items())
        print(f"python -m benchmarks NAME [arguments]; `NAME --help` has the arguments. Names:\n\n{listed}")
        return 0
    if name not in COMMANDS:
        raise command_line.UserError(f"there is no benchmark {name!r}; accepted: {', '.join(COMMANDS)}")
    return importlib.import_module(f"benchmarks.{COMMANDS[name][0]}").main(arguments)


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
