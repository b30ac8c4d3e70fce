"""What PaddleNLP's users import is there without it."""

ROOMS = "config data dtypes doctor inference numerics plan profiling surgery training"


def test_every_room_is_imported_without_paddlenlp(run_python):
    program = "import importlib, sys\n"
    program += f"for name in {ROOMS.split()}: importlib.import_module('llm_npu.' + name)\n"
    program += "import llm_npu.training.trainer, llm_npu.training.run, llm_npu.training.dry_run.features\n"
    program += "sys.exit(' '.join(name for name in sys.modules if name.startswith('paddlenlp')) or 0)"
    done = run_python("-m", "virtual_npu", "-c", program)
    assert done.returncode == 0, done.stderr
