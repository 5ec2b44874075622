"""The process of one guided target: `python -m tests.faults.hostile.guided_process TARGET ...`."""

import sys

from tests.faults.hostile.guided import fuzz

if __name__ == "__main__":
    fuzz(sys.argv[1], sys.argv[2:])
