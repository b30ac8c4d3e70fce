"""The virtual NPU as a device: memory, copies, streams, events, random numbers, and what it refuses."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest

from virtual_npu import activation

CHUNK = 1 << 20


pytestmark = pytest.mark.usefixtures("on_npu")


def test_eight_devices_by_default():
    assert paddle.device.get_all_custom_device_type() == ["npu"]
    assert paddle.device.get_available_custom_device() == [f"npu:{i}" for i in range(8)]


def test_copies_between_host_and_devices():
    values = np.arange(CHUNK + 3, dtype="float32")
    first = paddle.to_tensor(values)
    second = paddle.to_tensor(first, place=paddle.CustomPlace("npu", 1))
    assert str(first.place) == "Place(npu:0)" and str(second.place) == "Place(npu:1)"
    np.testing.assert_array_equal(second.cpu().numpy(), values)
    np.testing.assert_array_equal((second + 1).numpy(), values + 1)


def test_streams_and_events_are_ordered():
    stream, event = paddle.device.Stream(), paddle.device.Event()
    x = paddle.ones([1000])
    with paddle.device.stream_guard(stream):
        y = x * 3
        event.record(stream)
    paddle.device.current_stream().wait_event(event)
    event.synchronize()
    stream.synchronize()
    assert event.query() and stream.query()
    assert float((y + x).sum()) == 4000


def test_memory_statistics_follow_tensors():
    paddle.device.synchronize()
    before = paddle.device.memory_allocated("npu:0")
    x = paddle.zeros([CHUNK], dtype="float32")
    assert paddle.device.memory_allocated("npu:0") == before + 4 * CHUNK
    assert paddle.device.max_memory_allocated("npu:0") >= before + 4 * CHUNK
    del x
    assert paddle.device.memory_allocated("npu:0") == before


@pytest.mark.slow
def test_out_of_memory_is_an_error_and_leaves_the_device_usable(run_program):
    done = run_program(
        """
        import paddle
        paddle.set_device("npu")
        kept = paddle.ones([1 << 20])
        try:
            paddle.ones([1 << 28])
        except MemoryError as error:
            print(error)
        for _ in range(50):  # freed memory is used again, so 50 x 64 MiB fit into 256 MiB
            last = paddle.full([1 << 24], 2.0)
        other = paddle.ones([1 << 25], dtype="float32")._copy_to(paddle.CustomPlace("npu", 1), True)
        print("still", float(kept.sum()), float(last[0]), float(other[5]))
        """,
        VIRTUAL_NPU_MEMORY_GB="0.25",
    )
    assert done.returncode == 0, done.stderr
    assert "Out of memory error on npu:0" in done.stdout and "Cannot allocate 1.000000GB" in done.stdout
    assert "still 1048576.0 2.0 1.0" in done.stdout


@pytest.mark.parametrize("device", ["npu:8", "npu:99"])
def test_device_out_of_range_is_refused(device):
    with pytest.raises(ValueError, match="wrong place"):
        paddle.set_device(device)
    assert float(paddle.ones([2]).sum()) == 2


@pytest.mark.sampled
@pytest.mark.parametrize(
    "draw",
    [
        lambda: paddle.rand([5]),
        lambda: paddle.randn([5]),
        lambda: paddle.randint(0, 1000, [5]),
        lambda: paddle.randperm(9),
        lambda: paddle.bernoulli(paddle.full([20], 0.5)),
        lambda: paddle.multinomial(paddle.full([9], 0.5), 4),
        lambda: paddle.nn.functional.dropout(paddle.ones([20]), 0.3),
        lambda: paddle.ones([4]).exponential_(),
    ],
)
def test_random_numbers_equal_the_cpu_for_the_same_seed(draw):
    drawn = {}
    for device in ("cpu", "npu"):
        paddle.set_device(device)
        paddle.seed(7)
        drawn[device] = [draw().numpy() for _ in range(2)]
    np.testing.assert_array_equal(drawn["cpu"], drawn["npu"])


def test_random_state_can_be_saved_and_restored():
    state = paddle.get_rng_state()
    first = paddle.rand([4]).numpy()
    paddle.set_rng_state(state)
    np.testing.assert_array_equal(first, paddle.rand([4]).numpy())


@pytest.mark.slow
def test_plugin_built_for_another_paddle_is_not_loaded(run_python, tmp_path):
    library = activation.PLUGIN_FOLDER / activation.LIBRARY
    stamped = library.read_bytes().replace(b"paddle version=3.3.1", b"paddle version=9.9.9")
    assert stamped != library.read_bytes()
    foreign = tmp_path / "virtual_npu" / "plugin"
    foreign.mkdir(parents=True)
    (foreign / library.name).write_bytes(stamped)
    (tmp_path / "paddle_fused").symlink_to(activation.PACKAGE_FOLDER.parent / "paddle_fused")
    done = run_python(
        "-c",
        "import paddle; print(paddle.device.get_all_custom_device_type())",
        CUSTOM_DEVICE_ROOT=str(foreign),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("[]")
    assert "was built for paddlepaddle 9.9.9" in done.stderr and "this is paddlepaddle 3.3.1" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VIRTUAL_NPU_DEVICES", "17"),
        ("VIRTUAL_NPU_MEMORY_GB", "-1"),
        ("VIRTUAL_NPU_STRICT", "yes"),
        ("VIRTUAL_NPU_LINK_GBPS", "0"),
    ],
)
def test_plugin_says_which_setting_it_does_not_understand(run_python, name, value):
    # Without activate(), which checks the settings itself.
    root = str(activation.PLUGIN_FOLDER)
    done = run_python(
        "-c",
        "import paddle; print(paddle.device.get_all_custom_device_type())",
        CUSTOM_DEVICE_ROOT=root,
        **{name: value},
    )
    assert done.stdout.strip().endswith("[]")
    assert f"{name}={value} is invalid" in done.stderr


def shared_files_of(process: int) -> list[str]:
    """Files with a shared name, which would remain after the process is killed."""
    return [line for line in Path(f"/proc/{process}/maps").read_text().splitlines() if " /dev/shm/" in line]


@pytest.mark.slow
def test_kill_leaves_nothing_that_stops_the_next_run(run_program, tmp_path):
    program = tmp_path / "endless.py"
    program.write_text(
        "import paddle\npaddle.set_device('npu')\nx = paddle.ones([64, 64])\nprint('up', flush=True)\n"
        "while True:\n    x = paddle.matmul(x, x) * 1e-3\n"
    )
    for _ in range(2):
        running = subprocess.Popen(
            [sys.executable, "-m", "virtual_npu", str(program)], stdout=subprocess.PIPE, text=True
        )
        assert running.stdout.readline() == "up\n"
        assert shared_files_of(running.pid) == []
        running.send_signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
        running.stdout.close()
    done = run_program("import paddle\npaddle.set_device('npu')\nprint(float(paddle.ones([3]).sum()))")
    assert done.returncode == 0 and done.stdout.strip().endswith("3.0")


def test_stamp_names_the_paddle_of_the_build():
    stamp = json.loads((activation.PACKAGE_FOLDER / activation.STAMP).read_text())
    assert stamp["paddle_version"] == paddle.version.full_version
    assert stamp["paddle_commit"] == paddle.version.commit
