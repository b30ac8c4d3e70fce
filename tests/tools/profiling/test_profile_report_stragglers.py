"""Which ranks the others wait for: in each communication group, and not those that pass a delay on."""

import shutil

import pytest
from handmade_profiles import msprof
from handmade_profiles.msprof import Task

from llm_npu.core.errors import UserError
from llm_npu.profiling import folders
from llm_npu.profiling.report import summary
from llm_npu.profiling.report.pages import plain
from llm_npu.profiling.report.stragglers import Straggler

pytestmark = pytest.mark.sampled


def two_ranks(folder, slow: int, matmul: int = 100):
    """Rank ``slow`` multiplies twice as long; the other waits for it in every collective."""
    for rank in range(2):
        tasks, now = [], 0
        for step in range(5):
            length = matmul * (1 + (rank == slow))
            arrive = 2 * matmul if slow is not None else matmul
            tasks.append(Task("MatMulV2", "AI_CORE", now, length))
            end = now + arrive + 20
            reduce = Task(
                "hcom_allReduce_", "HCCL", now + length, end - now - length, name=f"hcom_allReduce__{step}"
            )
            tasks.append(reduce)
            now = end
        msprof.write(folder / f"rank_{rank}" / "PROF_1", tasks)
    return summary.build(folder)


@pytest.mark.parametrize("slow", [0, 1])
def test_the_slow_rank_is_named(tmp_path, slow):
    report = two_ranks(tmp_path, slow)
    stragglers = report.stragglers
    assert stragglers.slow == (Straggler(slow, (1 - slow,), 500_000, 500_000, "matmul", 5),)
    assert stragglers.waiting == {slow: 0, 1 - slow: 500_000}
    advice = next(advice for advice in report.advice if "wait" in advice.title)
    assert advice.title == f"The other ranks wait for rank {slow}"
    assert (
        all(key in advice.evidence for key in ("5 collectives", "500.0 us")) and "matmul" in advice.evidence
    )


def test_equal_ranks_have_no_straggler(tmp_path):
    stragglers = two_ranks(tmp_path, slow=None).stragglers
    assert stragglers.slow == () and set(stragglers.waiting.values()) == {0}


def test_ranks_with_other_collectives_are_not_compared(tmp_path):
    for rank, kind in enumerate(("hcom_send_", "hcom_receive_")):
        msprof.write(tmp_path / f"rank_{rank}" / "PROF_1", [Task(kind, "HCCL", 0, 10)])
    assert summary.build(tmp_path).stragglers is None


def groups_of_two(folder, lengths):
    """Four ranks in two groups, each with collectives of its own at the same time, of ``lengths`` by rank."""
    for rank, length in enumerate(lengths):
        tasks = [
            Task(
                "hcom_allReduce_",
                "HCCL",
                100 * turn,
                length,
                name=f"hcom_allReduce__{500 + rank // 2}_{turn}_1",
            )
            for turn in range(5)
        ]
        msprof.write(folder / f"rank_{rank}" / "PROF_1", tasks)
    return summary.build(folder).stragglers


def test_collectives_of_other_groups_are_not_compared(tmp_path):
    """Those of the second group are larger: nobody waits in either."""
    stragglers = groups_of_two(tmp_path, (10, 10, 60, 60))
    assert (stragglers.slow, stragglers.compared) == ((), 10)
    assert set(stragglers.waiting.values()) == {0}


def test_ranks_wait_within_their_group(tmp_path):
    stragglers = groups_of_two(tmp_path, (90, 10, 60, 50))
    assert stragglers.waiting == {0: 400_000, 1: 0, 2: 50_000, 3: 0}
    assert [(slow.rank, slow.others, slow.cost) for slow in stragglers.slow] == [
        (1, (0,), 400_000),
        (3, (2,), 50_000),
    ]


def test_ranks_without_common_names_are_compared_by_operator(tmp_path):
    for rank, length in enumerate((50, 10)):
        tasks = [
            Task("hcom_allReduce_", "HCCL", 100 * turn, length, name=f"hcom_allReduce__{rank}{turn}_1")
            for turn in range(5)
        ]
        msprof.write(tmp_path / f"rank_{rank}" / "PROF_1", tasks)
    stragglers = summary.build(tmp_path).stragglers
    (slow,) = stragglers.slow
    assert (slow.rank, slow.cost, stragglers.compared) == (1, 200_000, 5)


STEPS = 5


def in_order(folder, times, groups):
    """Ranks that multiply for ``times`` and then meet in each of ``groups`` that is theirs, step by step.

    A group is the number in its collectives' names, and its ranks; they end 10 after the last has come.
    """
    tasks = [[] for _ in times]
    now = [0] * len(times)
    for step in range(STEPS):
        for rank, time in enumerate(times):
            tasks[rank].append(Task("MatMulV2", "AI_CORE", now[rank], time))
            now[rank] += time
        for number, members in groups.items():
            end = max(now[rank] for rank in members) + 10
            for rank in members:
                name = f"hcom_allReduce__{number}_{step}_1"
                tasks[rank].append(Task("hcom_allReduce_", "HCCL", now[rank], end - now[rank], name=name))
                now[rank] = end
    for rank, own in enumerate(tasks):
        msprof.write(folder / f"rank_{rank}" / "PROF_1", own)
    return summary.build(folder)


def test_each_group_has_its_own_straggler(tmp_path):
    """Pairs that have nothing to do with each other: no rank is the last of all."""
    report = in_order(tmp_path, (100, 300, 200, 100), {500: (0, 1), 501: (2, 3)})
    assert report.stragglers.slow == (
        Straggler(1, (0,), STEPS * 200_000, STEPS * 200_000, "matmul", STEPS),
        Straggler(2, (3,), STEPS * 100_000, STEPS * 100_000, "matmul", STEPS),
    )
    titles = [advice.title for advice in report.advice if "wait" in advice.title]
    assert titles == ["Rank 0 waits for rank 1", "Rank 3 waits for rank 2"]


def test_pairs_that_are_slow_alike_each_have_a_straggler_though_all_meet(tmp_path):
    report = in_order(tmp_path, (100, 200, 200, 100), {500: (0, 1), 501: (2, 3), 502: (0, 1, 2, 3)})
    assert [(slow.rank, slow.others) for slow in report.stragglers.slow] == [(1, (0,)), (2, (3,))]


def test_who_passes_a_delay_on_is_no_straggler(tmp_path):
    """Rank 0 is slow. Rank 1 waits for it in their pair, and so comes late to its other pair."""
    pairs = {500: (0, 1), 501: (2, 3), 600: (0, 2), 601: (1, 3)}
    report = in_order(tmp_path, (300, 100, 100, 100), pairs)
    (slow,) = report.stragglers.slow
    assert (slow.rank, slow.others, slow.reason) == (0, (1, 2), "matmul")
    assert (slow.cost, slow.at_stake) == (STEPS * 200_000, STEPS * 400_000)
    (advice,) = [advice for advice in report.advice if "wait" in advice.title]
    assert advice.title == "Ranks 1, 2 wait for rank 0"
    assert report.stragglers.waiting == {0: 0, 1: STEPS * 200_000, 2: STEPS * 200_000, 3: STEPS * 200_000}


def test_all_wait_for_one(tmp_path):
    report = in_order(tmp_path, (100, 100, 300, 100), {500: (0, 1, 2, 3)})
    (slow,) = report.stragglers.slow
    assert (slow.rank, slow.others, slow.at_stake) == (2, (0, 1, 3), STEPS * 600_000)
    assert "The other ranks wait for rank 2" in [advice.title for advice in report.advice]


def on_two_machines(folder, times):
    """Four ranks that meet in pairs across two machines, of which each has a folder; the report on both."""
    in_order(folder, times, {500: (0, 2), 501: (1, 3)})
    for rank in range(4):
        number = rank // 2
        machine = folder / f"machine{number}"
        machine.mkdir(exist_ok=True)
        own = (folder / f"rank_{rank}").rename(machine / f"rank_{rank}")
        (own / "machine.json").write_text(f'{{"host": "node{number}", "address": "10.0.0.{number + 1}"}}')
    return summary.build(folder / "machine0", folder / "machine1")


def test_a_slow_rank_is_named_with_its_machine(tmp_path):
    report = on_two_machines(tmp_path, (100, 100, 100, 300))
    (advice,) = (advice for advice in report.advice if "wait" in advice.title)
    assert advice.title == "Rank 1 waits for rank 3 on node1 (10.0.0.2)"
    assert [rank.machine for rank in report.ranks] == ["node0 (10.0.0.1)"] * 2 + ["node1 (10.0.0.2)"] * 2
    header, _, *rows = plain.write(report).partition("\nRanks\n")[2].splitlines()
    assert header.split()[-1] == "machine" and [row.split()[-2] for row in rows[:4]] == [
        "node0",
        "node0",
        "node1",
        "node1",
    ]


def test_the_only_rank_of_one_machine_is_reported(tmp_path):
    on_two_machines(tmp_path, (100, 100, 100, 300))
    (tmp_path / "machine1/rank_2").rename(tmp_path / "rank_2")
    report = summary.build(tmp_path / "machine1")
    assert [rank.machine for rank in report.ranks] == ["node1 (10.0.0.2)"]
    assert "\nRanks\n" not in plain.write(report)


def test_a_slow_machine_is_named(tmp_path):
    report = on_two_machines(tmp_path, (100, 100, 300, 200))
    (advice,) = (advice for advice in report.advice if "wait" in advice.title)
    assert advice.title == "Ranks 0, 1 wait for the machine node1 (10.0.0.2)"
    assert advice.at_stake == STEPS * 200_000 * 2 and "matmul" in advice.evidence


def test_a_folder_without_a_profile_among_others_is_refused(tmp_path):
    on_two_machines(tmp_path, (100, 100, 100, 100))
    (tmp_path / "machine2").mkdir()
    with pytest.raises(UserError, match="machine2 contains no readable profile"):
        summary.build(tmp_path / "machine0", tmp_path / "machine2")


def test_a_damaged_name_of_a_machine_is_a_note(tmp_path):
    on_two_machines(tmp_path, (100, 100, 100, 100))
    (tmp_path / "machine1/rank_3/machine.json").write_text("[]")
    report = summary.build(tmp_path / "machine0", tmp_path / "machine1")
    assert report.ranks[3].machine == "" and any("machine.json" in note for note in report.notes)


@pytest.mark.slow
@pytest.mark.parametrize("newer", ["machine0", "machine1"])
def test_the_machine_is_that_of_the_newest_profile_of_a_rank(tmp_path, newer):
    """Both folders have rank 2, captured at different times on different machines."""
    on_two_machines(tmp_path, (100, 100, 100, 300))
    other = tmp_path / "machine0/rank_2"
    shutil.copytree(tmp_path / "machine1/rank_2", other)
    shutil.copy(tmp_path / "machine0/rank_0/machine.json", other)
    for number in range(2):
        profile = tmp_path / f"machine{number}/rank_2/PROF_1"
        year = 2026 if newer == f"machine{number}" else 2025
        profile.rename(profile.with_name(f"PROF_000001_{year}0101000000000_A"))
    for order in (("machine0", "machine1"), ("machine1", "machine0")):
        report = summary.build(*(tmp_path / name for name in order))
        (machine,) = (rank.machine for rank in report.ranks if rank.rank == 2)
        assert machine == {"machine0": "node0 (10.0.0.1)", "machine1": "node1 (10.0.0.2)"}[newer]


def test_a_folder_that_is_used_again_names_no_earlier_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "10.0.0.1:1,10.0.0.2:1")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    folders.write_machine(tmp_path)
    assert "10.0.0.2" in (tmp_path / folders.MACHINE).read_text()
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "10.0.0.1:1")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "0")
    folders.write_machine(tmp_path)
    assert not (tmp_path / folders.MACHINE).exists()
