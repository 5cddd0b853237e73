"""Runs the README example with another interpreter, against a broker of its own: `run_readme.py PYTHON FILE`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from punctual.testing import BrokerProcess

SECONDS_MAX = 60
PRINTED = "cancelled in time\nunpaid: 2\n"


def main() -> None:
    python, file = (os.path.abspath(one) for one in sys.argv[1:3])
    broker = BrokerProcess(["serve", "--listen", "127.0.0.1:0", "--data-dir", "data", "--log-format", "json"])
    try:
        with tempfile.TemporaryDirectory() as directory:
            environment = {"PATH": os.environ["PATH"], "PUNCTUAL_URL": broker.url}
            command = [python, "-I", file]  # -I: neither the sources nor the environment of the caller
            done = subprocess.run(
                command, cwd=directory, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX
            )
    finally:
        broker.stop()
    if done.returncode != 0 or done.stdout != PRINTED:
        sys.exit(f"the README example failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    print("the README example ran")


if __name__ == "__main__":
    main()
