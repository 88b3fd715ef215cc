"""Says what it was given, and is done."""

import os
import sys

print(sys.argv[1:], os.environ["TEXT"], os.environ["MORE"])
