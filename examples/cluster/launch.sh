#!/usr/bin/env bash
# Starts the ranks of one machine of a training on several. Typed on each of them, here on two:
#
#   NNODES=2 NODE_RANK=0 MASTER=10.0.0.1:8090 HOST_IP=10.0.0.1 examples/cluster/launch.sh --output_dir /shared/out
#   NNODES=2 NODE_RANK=1 MASTER=10.0.0.1:8090 HOST_IP=10.0.0.2 examples/cluster/launch.sh --output_dir /shared/out
#
# HOST_IP is the machine's own IPv4 address, MASTER a free port on that of the first machine (NODE_RANK 0).
# RDZV_TIMEOUT (600) is the number of seconds that the machines wait for each other, NPROC_PER_NODE (8) the number of
# devices of a machine, LOG_DIR (log) the folder of the ranks' logs. LLM_NPU_RUN_SECRET, or LLM_NPU_RUN_SECRET_FILE, is a
# text of 16 characters or more that only these machines know: nobody else can then take part in the run.
# The arguments are those of scripts/run_llama_npu.py.
set -euo pipefail

# Paddle's launcher, with a limit to its wait, which takes --nnodes, --rank, --master and --host from these variables.
# A machine's ranks write to workerlog.0, workerlog.1, ...: each machine needs a folder where the disk is shared.
export NNODES="${NNODES:-}" NODE_RANK="${NODE_RANK:-}" MASTER="${MASTER:-}" HOST_IP="${HOST_IP:-}"
exec python -m llm_npu.cluster.rendezvous \
  --nproc_per_node "${NPROC_PER_NODE:-8}" --log_dir "${LOG_DIR:-log}/$NODE_RANK" \
  "$(dirname "$0")/../../scripts/run_llama_npu.py" "$@"
