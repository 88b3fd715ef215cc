#!/bin/sh
# Shows that the variable arrived, and not what it is.
echo "node $NODE_RANK has $(printf %s "$E2E_TOKEN" | sha256sum)"
