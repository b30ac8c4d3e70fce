#!/usr/bin/env bash
# Starts the ranks of one machine of a training on several. Typed on each of them, here on two:
#
#   NNODES=2 NODE_RANK=0 MASTER=10.0.0.1:8090 HOST_IP=10.0.0.1 examples/cluster/launch.sh --output_dir /shared/out
#   NNODES=2 NODE_RANK=1 MASTER=10.0.0.1:8090 HOST_IP=10.0.0.2 examples/cluster/launch.sh --output_dir /shared/out
#
# HOST_IP is the machine's own IPv4 address, MASTER a free port on that of the first machine (NODE_RANK 0).
# NPROC_PER_NODE (8) is the number of devices of a machine, LOG_DIR (log) the folder of the ranks' logs.
# The arguments are those of scripts/run_llama_npu.py.
set -euo pipefail

for name in NNODES NODE_RANK MASTER HOST_IP; do
  if [ -z "${!name:-}" ]; then
    echo "error: $name is not set; each machine needs NNODES, NODE_RANK, MASTER and HOST_IP." >&2
    exit 2
  fi
done

# Paddle's launcher serves the others where HOST_IP is the address in MASTER. Without such a machine all would wait
# for ever.
if [ "$NODE_RANK" -eq 0 ] && [ "${MASTER%:*}" != "$HOST_IP" ]; then
  echo "error: MASTER is $MASTER, but HOST_IP of the first machine is $HOST_IP; give MASTER=$HOST_IP:PORT to all." >&2
  exit 2
fi

# A machine's ranks write to workerlog.0, workerlog.1, ...: each machine needs a folder where the disk is shared.
exec python -m paddle.distributed.launch \
  --nnodes "$NNODES" --master "$MASTER" --host "$HOST_IP" --rank "$NODE_RANK" \
  --nproc_per_node "${NPROC_PER_NODE:-8}" --log_dir "${LOG_DIR:-log}/$NODE_RANK" \
  "$(dirname "$0")/../../scripts/run_llama_npu.py" "$@"
