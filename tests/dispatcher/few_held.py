"""A dispatcher whose bound on held triggers is reached with fewer of them: `python -m tests.dispatcher.few_held`.

At the bound of a real one the machine of the tests is busy with the signs of life of 2,048 triggers.
"""

import sys
from typing import Final

from dispatcher import held
from dispatcher.__main__ import main

FEW: Final = 200

if __name__ == "__main__":
    held.MAX_HELD = FEW  # type: ignore[misc]
    sys.exit(main())
