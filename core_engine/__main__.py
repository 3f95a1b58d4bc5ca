"""``python -m core_engine`` is the command ``core-engine``."""

import sys

from core_engine.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
