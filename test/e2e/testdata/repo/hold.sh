#!/bin/sh
# Holds its environment until /workspace/release exists.
trap 'echo "node $NODE_RANK was told to stop"; exit 143' TERM
echo "node $NODE_RANK holds the environment"
until [ -e /workspace/release ]; do sleep 0.2; done
if [ "$NODE_RANK" = 0 ]; then
  echo '{"step": 3, "steps": 3, "loss": 0.5}' >>"$MLENV_METRICS_FILE"
fi
echo "node $NODE_RANK was released"
