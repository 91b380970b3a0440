"""`python -m harnesslab` is the command line. Written by hand, like `__init__.py`."""
import sys

from .cli import main

sys.exit(main())
