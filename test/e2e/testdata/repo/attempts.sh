#!/bin/sh
# Node 1 is killed in attempt 1 when node 0 has started, attempt 2 waits to be interrupted, and attempt 3 succeeds.
echo "node $NODE_RANK is in attempt $MLENV_ATTEMPT"
case $MLENV_ATTEMPT in
1)
  [ "$NODE_RANK" = 0 ] && touch /workspace/started
  until [ -e /workspace/started ]; do sleep 0.1; done
  [ "$NODE_RANK" = 1 ] && kill -KILL $$
  exec sleep 1000
  ;;
2) exec sleep 1000 ;;
esac
if [ "$NODE_RANK" = 0 ]; then
  echo '{"step": 3, "steps": 3, "loss": 0.5}' >>"$MLENV_METRICS_FILE"
fi
