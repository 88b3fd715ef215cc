#!/bin/sh
# Runs on for an hour, with metrics of node 0 that meet the rule in the first argument.
metrics() { echo "$1" >>"$MLENV_METRICS_FILE"; }
if [ "$NODE_RANK" = 0 ]; then
  case $1 in
  nan)
    metrics '{"step": 1, "loss": 2.5}'
    metrics '{"step": 2, "loss": NaN}'
    ;;
  high)
    metrics '{"step": 99, "loss": 31}'
    metrics '{"step": 100, "loss": 20.5}'
    ;;
  slow) # 20 steps of 2 s, and then steps of 32 s
    step=0 time=$(($(date +%s) - 1000))
    while [ $step -lt 40 ]; do
      metrics "{\"step\": $step, \"time\": $time}"
      [ $step -lt 20 ] && time=$((time + 2)) || time=$((time + 32))
      step=$((step + 1))
    done
    ;;
  esac
fi
exec sleep 3600
