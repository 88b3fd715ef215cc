"""Prints its arguments and exits."""

import os
import sys

print(sys.argv[1:], os.environ["TEXT"], os.environ["MORE"])
