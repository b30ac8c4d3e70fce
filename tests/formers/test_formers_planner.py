"""The planner beside PaddleFormers."""

PLAN = ("-m", "llm_npu.plan", "--model_name_or_path", "meta-llama/Llama-2-7b", "--cards", 8)


def test_the_planner_names_no_change_that_the_trainer_refuses(run_python):
    done = run_python(*PLAN, "--tensor_parallel_degree", 2)
    assert done.returncode == 0, done.stderr
    assert "without fused rms_norm" in done.stdout and "overlap" not in done.stdout
