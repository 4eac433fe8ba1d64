"""`python -m p2ptrain` is `p2ptrain`."""

import sys

from p2ptrain.cli import main

sys.exit(main())
