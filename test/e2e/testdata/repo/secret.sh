#!/bin/sh
# Shows that the variable is set, without its value; then holds the environment.
echo "node $NODE_RANK has $(printf %s "$E2E_TOKEN" | sha256sum)"
exec sh e2e/hold.sh
