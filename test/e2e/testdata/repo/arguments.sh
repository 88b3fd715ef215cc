#!/bin/sh
# Prints the arguments and a variable, byte for byte.
for argument; do
  echo "argument $(printf %s "$argument" | base64 -w0)."
done
echo "variable $(printf %s "$E2E_TEXT" | base64 -w0)."
