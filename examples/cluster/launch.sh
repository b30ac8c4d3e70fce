#!/usr/bin/env bash
# Starts the ranks of one machine of a multi-machine run. Run it on each machine, here two:
#
#   NNODES=2 NODE_RANK=0 MASTER=10.0.0.1:8090 HOST_IP=10.0.0.1 examples/cluster/launch.sh --output_dir /shared/out
#   NNODES=2 NODE_RANK=1 MASTER=10.0.0.1:8090 HOST_IP=10.0.0.2 examples/cluster/launch.sh --output_dir /shared/out
#
# HOST_IP: the machine's own IPv4 address; MASTER: the first machine's (NODE_RANK 0), with a free port.
# RDZV_TIMEOUT (600): rendezvous timeout in seconds; NPROC_PER_NODE (8): devices per machine; LOG_DIR (log): the folder of
# the ranks' logs. LLM_NPU_RUN_SECRET, or a file in LLM_NPU_RUN_SECRET_FILE: a secret of 16 characters or more; only
# processes with it can join the run. The arguments are those of scripts/run_llama_npu.py.
set -euo pipefail

# Paddle's launcher with a rendezvous timeout; it reads --nnodes, --rank, --master and --host from these variables.
# Ranks of every machine write to workerlog.0, workerlog.1, ...: on a shared disk, each machine needs its own folder.
export NNODES="${NNODES:-}" NODE_RANK="${NODE_RANK:-}" MASTER="${MASTER:-}" HOST_IP="${HOST_IP:-}"
exec python -m llm_npu.cluster.rendezvous \
  --nproc_per_node "${NPROC_PER_NODE:-8}" --log_dir "${LOG_DIR:-log}/$NODE_RANK" \
  "$(dirname "$0")/../../scripts/run_llama_npu.py" "$@"
