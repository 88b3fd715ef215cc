#!/bin/sh
# Writes metrics on node 0, and holds its environment.
if [ "$NODE_RANK" = 0 ]; then
  now=$(date +%s)
  echo '{"step": 10, "steps": 500, "loss": 0.75, "tokens": 1000, "time": '"$now"'}' >>"$MLENV_METRICS_FILE"
  echo '{"step": 20, "steps": 500, "loss": 0.5, "tokens": 3000, "time": '"$((now + 10))"'}' >>"$MLENV_METRICS_FILE"
  echo "node 0 has written metrics"
fi
exec sh e2e/hold.sh
