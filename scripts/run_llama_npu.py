"""Train a Llama, Qwen2, Mistral, Mixtral or Qwen2-MoE with PaddleNLP and fused operators on an Ascend NPU,
or on a virtual one when there is no card.

    python scripts/run_llama_npu.py                         # a small Llama on the text of Python's library
    python scripts/run_llama_npu.py --config demo.yaml --model_type qwen2 --use_fused_rope false
    python scripts/run_llama_npu.py --resume_from_checkpoint
    python scripts/run_llama_npu.py --nproc 2 --tensor_parallel_degree 2 --sequence_parallel true
    python scripts/run_llama_npu.py --help

Exit codes: 0 done; 2 bad input, with one sentence on stderr; 130 after Ctrl-C and 143 after SIGTERM, with a
checkpoint of the last finished step. docs/guide.md has those of ranks that are lost.
"""

import sys
from functools import partial

if __name__ == "__main__":
    from llm_npu.core import stopping

    stopping.listen("before the first step")  # early: Ctrl-C and SIGTERM may come while the rest is imported

import paddle_fused
from llm_npu import config, device, launch, profiling
from llm_npu.core import console
from llm_npu.doctor import explain
from llm_npu.numerics import reproducible
from paddle_fused import virtual_npu

PROMPT = "def __init__(self"


def main(argv: list[str]) -> int:
    # The device decides which plugin Paddle loads, so it is chosen before anything imports Paddle.
    early = config.Early.read(argv)
    chosen = device.select(early.device)
    reproducible.prepare(early.deterministic, chosen)
    if early.is_rank:
        launch.join(early, chosen)
    elif early.nproc > 1 and "--help" not in argv:
        return launch.start(__file__, early, chosen, explain.of_rank)
    if early.profile_dir:
        profiling.prepare(early.profile_dir)
    console.import_frameworks()
    from llm_npu import data, dtypes, patches, surgery
    from llm_npu.console import summary, why
    from llm_npu.core import ranks
    from llm_npu.data.text import tokenizer
    from llm_npu.inference import generate
    from llm_npu.launch import fake_process_group
    from llm_npu.models.paddlenlp import lora
    from llm_npu.numerics import options
    from llm_npu.parallel import overlap, pipeline_trainer
    from llm_npu.plan import dry_run
    from llm_npu.training import metrics, model, resume, trainer

    patches.apply()
    if dry := early.dry:
        fake_process_group.stand_for_all()
    run = config.parse(argv)
    if dry:
        dry_run.check(run)
    asked = model.config_for(run)
    kind = None
    if run.training.enable_auto_parallel:
        from llm_npu.parallel.trainer import ParallelTrainer, for_one_device

        asked = for_one_device(asked)
        kind = partial(ParallelTrainer, explains=run.training.explain_parallel)
    elif run.training.pipeline_parallel_degree > 1:
        kind = pipeline_trainer.PipelineTrainer
    continued = resume.requested(run.training, asked)
    text = data.find(run.data)
    tokens = tokenizer.tokenizer_for(run.model, text, asked.vocab_size, run.data.data_cache)
    samples = data.load(run.data, text, tokens, asked.vocab_size, need_valid=run.training.do_eval)
    trainer.set_max_steps(run.training, samples)
    settings = resume.settings(run, text, tokens)
    notes = resume.beginning(continued, run.training)
    notes += resume.changes(continued, settings) if continued else []
    network = model.build(run, asked, tokens, fill=not continued)
    if continued:
        model.load_weights(network, continued, run.training.trust_checkpoint)
    switches = run.fused.switches()
    report = surgery.apply_fused_kernels(network, **switches) if any(switches.values()) else None
    if run.training.overlap and run.training.tensor_parallel_degree > 1:
        overlapped = overlap.apply_overlap(network, overlap.chooser(run.training.overlap, console.say))
        notes += [f"overlap: {overlapped.summary()}"]
    if run.training.deterministic:
        notes.append(reproducible.condition())
    summary.start(run, chosen, network, report, samples, [*notes, dry_run.NOTE] if dry else notes)

    prompt = data.first_question(text, tokens) if run.data.stage == "sft" else PROMPT
    # scripts/generate.py writes text with what several processes have trained.
    alone = ranks.count() == 1 and not dry
    before = generate.continuation(lora.unwrapped(network), tokens, prompt) if alone else None
    speed = metrics.utilization(run, network)
    recorder = metrics.Recorder(console.Display(bar=not run.training.disable_tqdm), speed)
    mask = "object" if report and report.count("attention") else "dense"
    pretraining = trainer.pretraining(run, network, tokens, samples, recorder, settings, mask, kind)
    dry_run.follow(pretraining)
    if report:
        pretraining.add_callback(why.WhyLog(pretraining, report, switches))
    if run.training.profile:
        from llm_npu.profiling.steps import ProfileSteps

        window = config.profile_window(run.training.profile)
        pretraining.add_callback(ProfileSteps(window, early.profile_dir, console.say))
    options.attach(pretraining, run, chosen, report)
    if run.training.check_dtypes:
        pretraining.add_callback(dtypes.DtypeCheck(console.say))
    paddle_fused.reset_what_ran()
    if chosen.kind == "virtual":
        virtual_npu.reset_kernel_record()
    pretraining.train(resume_from_checkpoint=continued and str(continued))
    launches = virtual_npu.kernel_record() if chosen.kind == "virtual" else []
    ran = paddle_fused.what_ran()
    if pretraining.stop.received:
        return summary.stopped(pretraining)
    if dry:
        return dry_run.report(pretraining)

    after = generate.continuation(lora.unwrapped(network), tokens, prompt) if alone else None
    summary.finish(pretraining, chosen, launches, ran, prompt, before, after)
    return 0


if __name__ == "__main__":
    explain.after_tracebacks()
    sys.exit(console.run(main, sys.argv[1:], explain.of_error))
