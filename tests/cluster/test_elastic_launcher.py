"""Paddle's elastic launcher: a run goes on without a lost machine, and takes it in again when it returns.

The commands are those of docs/distributed.md.
"""

import importlib.util
import re
import shutil
import signal
import time

import pytest
import run_inputs
import virtual_machines
from run_inputs import losses

pytestmark = pytest.mark.slow
STEPS, SAVED = 60, 5
SAMPLES = 32  # accumulated in a step, by all ranks: a step takes long beside the start of a launcher
LIMIT = 600  # seconds for each part, on a busy host
ROUNDING = 1e-4  # relative, of losses in float32 whose sums have another order


@pytest.fixture
def machines():
    """Two to train on, and one for etcd."""
    if importlib.util.find_spec("etcd3") is None or shutil.which("etcd") is None:
        pytest.skip("no etcd: Debian's etcd-server and pip's etcd3 are not both installed")
    if not virtual_machines.namespaces_are_allowed():
        pytest.skip("network namespaces are not allowed here: no root, or no iproute2")
    with virtual_machines.machines(3) as hosts:
        yield hosts


def serve(machine, folder):
    """Starts etcd, and returns its address when it answers."""
    address, own = f"{machine.address}:2379", "http://127.0.0.1:2380"
    log = folder / "etcd.log"
    urls = {"--listen-client-urls": f"http://{address}", "--advertise-client-urls": f"http://{address}"}
    urls |= {"--listen-peer-urls": own, "--initial-advertise-peer-urls": own}
    options = [word for pair in urls.items() for word in pair]
    options += ["--initial-cluster", f"default={own}", "--data-dir", folder / "etcd"]
    process = machine.start(["etcd", *options], log, folder)
    end = time.monotonic() + LIMIT
    while "ready to serve client requests" not in log.read_text():
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    return address


def shown(pattern):
    """A part of the page."""
    page = (virtual_machines.ROOT / "docs/distributed.md").read_text()
    return re.search(pattern, page, re.DOTALL | re.MULTILINE)[1]


class Elastic:
    """The command of the page, on two machines and by etcd."""

    def __init__(self, machines, arguments, folder):
        self.machines, self.folder = machines[:2], folder
        address = serve(machines[2], folder)
        self.script = folder / "train.sh"
        text = shown(r"^```text\n(#!/[^`]* scripts/run_llama_npu\.py [^`]*)^```")
        self.script.write_text(text.replace("$((2 /", f"$(({SAMPLES} /"))
        self.script.chmod(0o755)
        command = shown(r"^(python -m paddle\.distributed\.launch --master etcd:.*?)\n```")
        replaced = {"HOST": address.partition(":")[0], "NAME": "test", "train.sh": str(self.script)}
        for word, by in replaced.items():
            command = re.sub(rf"\b{re.escape(word)}\b", by, command)
        self.command = f"exec {command} {' '.join(arguments)} --output_dir {folder / 'out'}"
        self.processes = [self.start(number) for number in range(2)]

    def start(self, number):
        command = re.sub(r"\bLOGS\b", str(self.folder / f"logs{number}"), self.command)
        return self.machines[number].start(
            ["bash", "-c", command],
            self.folder / f"launcher.{number}",
            virtual_machines.ROOT,
            PATH=virtual_machines.PATH,
            # etcd3's messages are of protobuf 3; later releases read them in Python only.
            PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python",
        )

    def log(self, number):
        file = self.folder / f"logs{number}/workerlog.0"
        return file.read_text(errors="replace") if file.exists() else ""

    def begun(self, number):
        """The steps at which the runs of this machine have continued."""
        return [int(step) for step in re.findall(r"resuming from \S*checkpoint-(\d+)", self.log(number))]

    def last_step(self, number):
        """The last step of the newest run of this machine; 0 before its first."""
        steps = re.findall(r"^step (\d+)/", re.split("resuming from", self.log(number))[-1], re.MULTILINE)
        return int(steps[-1]) if steps else 0

    def wait_for(self, condition, *alive):
        end = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < end, self.text()
            assert all(self.processes[number].poll() is None for number in alive), self.text()
            time.sleep(0.1)

    def text(self):
        files = sorted([*self.folder.glob("launcher.*"), *self.folder.glob("logs*/workerlog.*")])
        return "\n".join(f"---- {file} ----\n{file.read_text(errors='replace')[-4000:]}" for file in files)


def by_hand(machines, arguments, folder, source, step, accumulated):
    """Losses of a run on these machines, one rank on each, from ``step`` of the run ``source`` on."""
    out = folder / "out"
    out.mkdir(parents=True)
    if step is not None:
        shutil.copytree(source / f"checkpoint-{step}", out / f"checkpoint-{step}")
    words = [*arguments, "--resume_from_checkpoint", "auto", "--output_dir", str(out)]
    words += ["--gradient_accumulation_steps", str(accumulated)]
    job = virtual_machines.launch(machines, words, folder, ranks=1)
    assert job.wait(LIMIT) == [0] * len(machines), job.text()
    return losses(out)[0]


def test_a_machine_is_lost_and_returns(machines, tmp_path):
    fields = {"do_eval": "false", "evaluation_strategy": "no", "disable_tqdm": "true"}
    fields |= {"max_steps": STEPS, "save_steps": SAVED, "save_total_limit": STEPS}
    arguments = run_inputs.words(run_inputs.short_run(tmp_path, **fields))
    run = Elastic(machines, arguments, tmp_path)
    out = tmp_path / "out"
    run.wait_for(lambda: run.last_step(0) > SAVED and run.last_step(1) > SAVED, 0, 1)

    machines[1].signal_all(signal.SIGKILL)
    run.processes[1].wait()
    run.wait_for(lambda: run.begun(0) and run.last_step(0) > run.begun(0)[0], 0)
    assert "machine machine1 (10.77.0.2, rank " in run.log(0) and "is lost" in run.log(0), run.text()

    run.processes[1] = run.start(1)  # the machine has returned
    assert [process.wait(LIMIT) for process in run.processes] == [0, 0], run.text()
    assert run.begun(1) and run.begun(0)[-1] == run.begun(1)[-1], run.text()

    lost, returned = run.begun(0)[0], run.begun(0)[-1]
    assert lost % SAVED == 0 and lost < returned < STEPS, run.text()
    trained = losses(out)[0]
    assert sorted(trained) == list(range(1, STEPS + 1))
    two = by_hand(machines[:2], arguments, tmp_path / "two", out, None, SAMPLES // 2)
    on_one = by_hand(machines[:1], arguments, tmp_path / "one", out, lost, SAMPLES)
    again = by_hand(machines[:2], arguments, tmp_path / "again", out, returned, SAMPLES // 2)
    same_mesh = {step: loss for step, loss in two.items() if step <= lost}
    same_mesh |= {step: loss for step, loss in on_one.items() if lost < step <= returned}
    same_mesh |= {step: loss for step, loss in again.items() if step > returned}
    assert trained == same_mesh
    assert trained == pytest.approx(two, rel=ROUNDING)
