"""The warehouse's job, one command after the other in one Java: arguments in, as a JSON list by line; answers out.

Run as `python tests/support/warehouse_job.py PARENT_PID`. Each command is what `outbox etl` runs; a Spark for each
would take most of a test's time.
"""

from __future__ import annotations

import json
import sys

from outbox_etl.main import main
from tests.support.relay_entry import die_with

if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    for line in sys.stdin:
        code = main(json.loads(line))
        sys.stdout.write(f"{json.dumps({'exit_code': code})}\n")
        sys.stdout.flush()
