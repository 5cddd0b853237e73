"""A headless Chromium, driven over the WebDriver protocol, and calls of JSON over HTTP. For tools/screenshots and
tools/console-figures."""
import json
import subprocess
import tempfile
import time
import urllib.request

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --lang=en-GB --window-size=1280,860"
).split()


def call(base, method, path, body=None, timeout=60):
    """Sends JSON and returns the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


def wait_for(check, seconds=30):
    """Calls `check` until it does not fail, for a limited time, and returns what it returns."""
    end = time.monotonic() + seconds
    while True:
        try:
            return check()
        except (OSError, ValueError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


class Chromium:
    """A browser; `stack` ends it."""

    def __init__(self, stack):
        driver = stack.enter_context(subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True))
        stack.callback(driver.terminate)
        line = next(line for line in driver.stdout if "successfully on port" in line)
        self.base = f"http://127.0.0.1:{line.split()[-1].rstrip('.')}"
        profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        self.session = "/session/" + call(self.base, "POST", "/session", wanted)["value"]["sessionId"]
        stack.callback(lambda: call(self.base, "DELETE", self.session))

    def command(self, path, body):
        return call(self.base, "POST", self.session + path, body)["value"]

    def devtools(self, name, values):
        return self.command("/goog/cdp/execute", {"cmd": name, "params": values})

    def run(self, script):
        return self.command("/execute/sync", {"script": script, "args": []})
