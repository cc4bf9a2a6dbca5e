"""``python -m nixldesc demo | show LAYOUT.json | locate LAYOUT.json ID | check DST.json SRC.json ...``.

Exit codes: 0 fine, 1 cannot be delivered or a byte was wrong, 2 wrong words or a wrong file.
"""

import sys

from nixldesc._cli.main import main

if __name__ == "__main__":
    sys.exit(main())
