"""The `sparklog` command as a file for spark-submit, for machines without the package.

`make bundle` copies it to dist/sparklog-submit.py. The package is in the zip beside it:

    spark-submit --py-files sparklog-0.1.0-py-files.zip sparklog-submit.py broker --config FILE
"""

from __future__ import annotations

from sparklog.cli import main

if __name__ == "__main__":
    main()
