"""`python -m rutc.models.digits`: the demonstration of `demo.py`, errors shown as one message."""

import sys

from rutc.errors import RutcError
from rutc.models.digits.demo import main

try:
    main()
except RutcError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_status)
