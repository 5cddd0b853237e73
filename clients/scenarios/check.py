#!/usr/bin/env python3
"""Runs scenarios over plain HTTP: the reference for the runners of the clients.

    check.py [--binary PATH] [--jobs N] [--store memory|embedded|redis] [--serve] [FILE ...]

Each scenario gets a fresh broker. Needs Python 3.9 and nothing else. A scenario with an unknown
key, verb or condition fails. `--store` runs the scenarios with a virtual clock on another store,
if `punctual dev` offers it. `--serve` runs them in real time, to look at one closely: `advance`
sleeps, and a scenario that needs more than ten seconds is left out.
"""

import argparse
import base64
import concurrent.futures
import hashlib
import hmac
import http.server
import itertools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
CLOCK_DEFAULT = "2027-01-04T08:00:00Z"
NAMESPACE_DEFAULT = "shop"
# A call that waits longer has hung: the longest wait of a scenario is far below.
CALL_SECONDS_MAX = 60
START_SECONDS_MAX = 30
# Standard Webhooks: a timestamp may be this far from now, in either direction.
TOLERANCE_SECONDS = 300
FILE_KEYS = {"name", "broker", "clock", "args", "token", "steps"}
STEP_KEYS = {"gives", "fails", "bind", "token"}
CONDITIONS = {"$lt", "$gt", "$length", "$any", "$absent", "$starts", "$contains", "$repeat"}


class Mismatch(Exception):
    pass


class Problem(Exception):
    """A call that failed with a problem document."""

    def __init__(self, document):
        super().__init__(json.dumps(document))
        self.document = document


# Matching --------------------------------------------------------------------------------------


def expand(value, names):
    """Replaces `$name` and `$repeat` in arguments and expectations."""
    if isinstance(value, str):
        return re.sub(
            r"\$([a-z][a-z0-9_]*)",
            lambda m: str(names[m.group(1)]) if m.group(1) in names else m.group(0),
            value,
        )
    if isinstance(value, list):
        return [expand(one, names) for one in value]
    if isinstance(value, dict):
        if "$repeat" in value:
            return value["$repeat"] * value["times"]
        return {expand(key, names): expand(one, names) for key, one in value.items()}
    return value


def match(want, got, path="answer"):
    def differs(expected):
        raise Mismatch(f"{path}: expected {expected}, got {short(got)}")

    if isinstance(want, dict):
        condition = next((key for key in want if key.startswith("$")), None)
        if condition:
            if condition not in CONDITIONS or len(want) != 1:
                raise Mismatch(f"{path}: unknown condition {want}")
            operand = want[condition]
            number = isinstance(got, (int, float)) and not isinstance(got, bool)
            holds = {
                "$lt": lambda: number and got < operand,
                "$gt": lambda: number and got > operand,
                "$length": lambda: isinstance(got, (str, list, dict)) and len(got) == operand,
                "$any": lambda: True,
                "$absent": lambda: False,
                "$starts": lambda: isinstance(got, str) and got.startswith(operand),
                "$contains": lambda: isinstance(got, str) and operand in got,
            }[condition]()
            if not holds:
                differs(json.dumps(want))
            return
        if not isinstance(got, dict):
            differs(json.dumps(want))
        for key, one in want.items():
            if isinstance(one, dict) and "$absent" in one:
                if key in got:
                    raise Mismatch(f"{path}.{key}: expected none, got {short(got[key])}")
            elif key not in got:
                raise Mismatch(f"{path}.{key}: missing in {short(got)}")
            else:
                match(one, got[key], f"{path}.{key}")
    elif isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            differs(f"{len(want)} elements")
        for index, one in enumerate(want):
            match(one, got[index], f"{path}.{index}")
    elif isinstance(want, bool) or isinstance(got, bool) or want is None:
        if want is not got:
            differs(json.dumps(want))
    elif want != got:
        differs(short(want))


def pick(answer, path):
    for part in path.split("."):
        answer = answer[int(part)] if isinstance(answer, list) else answer[part]
    return answer


def short(value, length=600):
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= length else text[:length] + " …"


# The broker ------------------------------------------------------------------------------------


class Broker:
    def __init__(self, binary, scenario, store, redis=None):
        self.binary, self.store, self.redis = binary, store, redis
        self.virtual = scenario.get("broker", "dev") == "dev"
        self.args = scenario.get("args", [])
        self.clock = scenario.get("clock", CLOCK_DEFAULT)
        self.dir = tempfile.TemporaryDirectory(prefix="punctual-scenario-")
        self.log = os.path.join(self.dir.name, "log")
        self.listen = "127.0.0.1:0"
        self.start()

    def start(self):
        if self.virtual:
            command = ["dev", "--listen", self.listen, "--clock", self.clock]
            command += ["--store", self.store] if self.store else []
        else:
            command = ["serve", "--listen", self.listen, "--log-format", "json"]
            command += ["--allow-private-targets"]
            if self.redis:
                command += ["--redis", self.redis, "--lease", "2s"]
            else:
                command += ["--data-dir", os.path.join(self.dir.name, "data")]
        # Answers as JSON lines: `dev` prints {"url"} on stdout, `serve` logs "ready" on stderr.
        self.process = subprocess.Popen(
            [self.binary, *command, *self.args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self.virtual else subprocess.DEVNULL,
            stderr=open(self.log, "ab") if self.virtual else subprocess.PIPE,
            cwd=self.dir.name,
        )
        pipe = self.process.stdout if self.virtual else self.process.stderr
        deadline = time.monotonic() + START_SECONDS_MAX
        seen = b""
        while time.monotonic() < deadline:
            if not select.select([pipe], [], [], 0.5)[0]:
                continue
            chunk = os.read(pipe.fileno(), 65536)
            if not chunk:
                break
            seen += chunk
            url = next(filter(None, map(self.address, seen.split(b"\n")[:-1])), None)
            if url:
                self.url = url
                self.listen = url.split("//")[1].rstrip("/")
                threading.Thread(target=self.drain, args=(pipe,), daemon=True).start()
                return
        log = open(self.log, "rb").read() if os.path.exists(self.log) else b""
        raise Mismatch(f"the broker did not start: {(seen + log).decode(errors='replace')}")

    @staticmethod
    def address(line):
        try:
            line = json.loads(line)
        except ValueError:
            return None
        if "url" in line:
            return line["url"]
        fields = line.get("fields", {})
        return f"http://{fields['listen']}" if fields.get("message") == "ready" else None

    @staticmethod
    def drain(pipe):
        """Reads the output to its end. Otherwise the broker would block when the pipe is full."""
        try:
            while os.read(pipe.fileno(), 65536):
                pass
        except (OSError, ValueError):
            pass

    def restart(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.start()

    @property
    def urls(self):
        return [self.url]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.kill()
        self.dir.cleanup()


class Cluster:
    """Three brokers on one Redis. The leader is the first."""

    virtual = False

    def __init__(self, binary, scenario):
        self.brokers = []
        self.dir = tempfile.TemporaryDirectory(prefix="punctual-scenario-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "yes", "--dir", self.dir.name]
        self.redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            self.until(lambda: not socket.create_connection(("127.0.0.1", int(port))).close())
            for _ in range(3):
                redis = f"redis://127.0.0.1:{port}"
                self.brokers.append(Broker(binary, scenario, None, redis))
            self.until(self.whole)
        except BaseException:
            self.stop()
            raise

    @staticmethod
    def until(holds):
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                if holds():
                    return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise Mismatch("the cluster did not start")
            time.sleep(0.05)

    def whole(self):
        topology = self.topology()
        owners = [broker for broker in topology["brokers"] if broker["partitions"]]
        self.brokers.sort(key=lambda broker: broker.listen != topology["leader"])
        return len(owners) == 3 and self.brokers[0].listen == topology["leader"]

    def topology(self):
        with urllib.request.urlopen(self.brokers[-1].url + "/v1/topology", timeout=5) as answer:
            return json.load(answer)

    @property
    def urls(self):
        return [broker.url for broker in self.brokers]

    def kill_leader(self):
        leader = self.topology()["leader"]
        next(broker for broker in self.brokers if broker.listen == leader).kill()

    def stop(self):
        for broker in self.brokers:
            broker.stop()
        self.redis.kill()
        self.redis.wait()
        self.dir.cleanup()


class Receiver:
    """An HTTP receiver with a list of answers; the last one is repeated."""

    def __init__(self, answers):
        requests, lock = [], threading.Lock()

        class Hook(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length).decode("utf-8", "replace")
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = {"method": self.command, "path": self.path}
                request.update(headers=headers, body=body)
                with lock:
                    answer = answers[min(len(requests), len(answers) - 1)]
                    requests.append(request)
                body = answer.get("body", "")
                body = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(answer["status"])
                for name, value in answer.get("headers", {}).items():
                    self.send_header(name, value)
                if answer["status"] != 204:
                    self.send_header("content-length", str(len(body)))
                self.end_headers()
                if answer["status"] != 204:
                    self.wfile.write(body)

            do_POST = do_PUT = do_GET = do_PATCH = do_DELETE = answer

            def log_message(self, *_):
                pass

        self.requests = requests
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"


# Verbs -----------------------------------------------------------------------------------------


class Run:
    def __init__(self, scenario, binary, store):
        unknown = set(scenario) - FILE_KEYS
        if unknown:
            raise Mismatch(f"unknown keys of the file: {unknown}")
        self.scenario, self.names, self.receivers = scenario, {}, []
        self.token = scenario.get("token")
        if scenario.get("broker") == "cluster":
            self.broker = Cluster(binary, scenario)
        else:
            self.broker = Broker(binary, scenario, store)

    def call(self, method, path, body=None, query=None, headers=None):
        if query:
            path += "?" + urllib.parse.urlencode(query)
        if len(self.broker.urls) == 1:
            return self.call_at(self.broker.url, method, path, body, headers)
        # A broker that is dead, or a partition that has no owner for a moment: the next one.
        deadline = time.monotonic() + CALL_SECONDS_MAX
        for url in itertools.cycle(self.broker.urls):
            try:
                return self.call_at(url, method, path, body, headers)
            except (urllib.error.URLError, ConnectionError, Problem) as error:
                dead = not isinstance(error, Problem)
                if not dead and error.document["status"] != 503 or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def call_at(self, url, method, path, body=None, headers=None):
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        request = urllib.request.Request(url + path, data=data, method=method)
        if data is not None:
            request.add_header("content-type", "application/json")
        if self.step_token:
            request.add_header("authorization", f"Bearer {self.step_token}")
        for name, value in (headers or {}).items():
            if value is not None:
                request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=CALL_SECONDS_MAX) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            text = error.read()
            if not error.headers.get("content-type", "").startswith("application/problem+json"):
                raise Mismatch(f"{error.code} without a problem document: {text!r}") from None
            raise Problem(json.loads(text)) from None

    def step(self, step):
        verbs = [key for key in step if key not in STEP_KEYS]
        if len(verbs) != 1 or not hasattr(self, f"do_{verbs[0]}"):
            raise Mismatch(f"not one known verb: {verbs}")
        verb = verbs[0]
        arguments = expand(step[verb] or {}, self.names)
        self.step_token = expand(step.get("token", self.token), self.names)
        # Without a namespace of its own the namespace of the scenario.
        self.root = f"/v1/{quote(arguments.pop('namespace', NAMESPACE_DEFAULT))}"
        self.arguments = dict(arguments)
        try:
            answer = getattr(self, f"do_{verb}")(self.take)
            problem = None
        except Problem as failed:
            answer, problem = failed.document, failed
        if self.arguments:
            raise Mismatch(f"{verb} does not know the arguments {set(self.arguments)}")
        if "fails" in step:
            if problem is None:
                raise Mismatch(f"expected a failure, got {short(answer)}")
            match(expand(step["fails"], self.names), answer, "problem")
        elif problem is not None:
            raise Mismatch(f"failed: {short(answer)}")
        if "gives" in step:
            match(expand_expected(step["gives"], self.names), answer)
        for name, path in step.get("bind", {}).items():
            self.names[name] = pick(answer, path)

    def take(self, name, default=None):
        return self.arguments.pop(name, default)

    def rest(self):
        body, self.arguments = self.arguments, {}
        return body

    def of_task(self, take):
        return f"{self.root}/tasks/{quote(take('task'))}"

    def do_schedule(self, take):
        headers = {
            "if-none-match": take("if_none_match"),
            "idempotency-key": take("idempotency_key"),
        }
        version = take("if_match")
        if version is not None:
            headers["if-match"] = f'"{version}"'
        key, task = take("key"), take("task")
        if key is None:
            return self.call("POST", f"{self.root}/tasks", task, headers=headers)
        return self.call("PUT", f"{self.root}/tasks/{quote(key)}", task, headers=headers)

    def do_schedule_many(self, take):
        return self.call("POST", f"{self.root}/tasks", take("tasks"))

    def do_get(self, take):
        return self.call("GET", self.of_task(take))

    def do_cancel(self, take):
        return self.call("DELETE", self.of_task(take))

    def do_pause(self, take):
        return self.call("POST", self.of_task(take) + "/pause")

    def do_resume(self, take):
        return self.call("POST", self.of_task(take) + "/resume")

    def do_fire(self, take):
        return self.call("POST", self.of_task(take) + "/fire")

    def do_explain(self, take):
        return self.call("GET", self.of_task(take) + "/explain")

    def do_touch(self, take):
        path = self.of_task(take) + "/touch"
        return self.call("POST", path, self.rest() or None)

    def do_touch_many(self, take):
        return self.call("POST", f"{self.root}/touch", self.rest())

    def do_rules(self, take):
        return self.call("GET", f"{self.root}/rules")

    def do_put_rule(self, take):
        return self.call("PUT", f"{self.root}/rules/{quote(take('prefix'))}", take("create"))

    def do_delete_rule(self, take):
        return self.call("DELETE", f"{self.root}/rules/{quote(take('prefix'))}")

    def do_cancel_many(self, take):
        return self.call("POST", f"{self.root}/cancel", self.rest())

    def pages(self, path, items):
        pages_max = self.take("pages")
        query, found = self.rest(), []
        # A list that never ends is a defect: no scenario has so many pages.
        for page in range(1, 1001):
            answer = self.call("GET", path, query=query)
            found += answer[items]
            if answer.get("next") is None or page == pages_max:
                return {items: found}
            query["cursor"] = answer["next"]
        raise Mismatch(f"{path} has more than 1000 pages")

    def do_list(self, take):
        return self.pages(f"{self.root}/tasks", "tasks")

    def do_fires(self, take):
        if "task" in self.arguments:
            return self.pages(self.of_task(take) + "/fires", "fires")
        return self.pages(f"{self.root}/fires", "fires")

    def do_dead(self, take):
        return self.pages(f"{self.root}/dead", "dead")

    def do_redrive(self, take):
        return self.call("POST", f"{self.root}/dead/redrive", self.rest())

    def do_delete_dead(self, take):
        return self.call("DELETE", f"{self.root}/dead/{quote(take('fire_id'))}")

    def do_stats(self, take):
        return self.call("GET", f"{self.root}/stats")

    def do_queues(self, take):
        return self.call("GET", f"{self.root}/queues")

    def do_lanes(self, take):
        return self.call("GET", f"{self.root}/lanes")

    def do_workers(self, take):
        return self.call("GET", f"{self.root}/workers")

    def do_namespaces(self, take):
        return self.pages("/v1/namespaces", "namespaces")

    def do_topology(self, take):
        return self.call("GET", "/v1/topology")

    def do_whoami(self, take):
        return self.call("GET", "/v1/whoami")

    def do_forecast(self, take):
        return self.call("GET", f"{self.root}/forecast", query=self.rest())

    def do_preview(self, take):
        return self.call("GET", "/v1/preview", query=self.rest())

    def queue(self, take, call):
        return self.call("POST", f"{self.root}/queues/{quote(take('queue'))}/{call}", self.rest())

    def do_lease(self, take):
        self.arguments.setdefault("wait", "0s")
        return self.queue(take, "lease")

    def do_ack(self, take):
        return self.queue(take, "ack")

    def do_fail(self, take):
        return self.queue(take, "fail")

    def do_refuse(self, take):
        return self.queue(take, "refuse")

    def do_extend(self, take):
        return self.queue(take, "extend")

    def do_work(self, take):
        queue, outcomes, count = take("queue"), take("handler"), take("count")
        path, handled = f"{self.root}/queues/{quote(queue)}", []
        deadline = time.monotonic() + CALL_SECONDS_MAX
        urls = itertools.cycle(self.broker.urls)
        wait = "1s" if len(self.broker.urls) == 1 else "100ms"
        while len(handled) < count:
            if time.monotonic() > deadline:
                raise Mismatch(f"{len(handled)} of {count} deliveries came: {short(handled)}")
            # Each broker hands out what it owns.
            body = {"max": 1, "wait": wait, "lease": "30s"}
            try:
                leased = self.call_at(next(urls), "POST", f"{path}/lease", body)
            except (urllib.error.URLError, ConnectionError):
                if len(self.broker.urls) == 1:
                    raise
                continue
            for delivery in leased["deliveries"]:
                outcome = dict(outcomes[min(len(handled), len(outcomes) - 1)])
                handled.append(delivery)
                do, body = outcome.pop("do"), {"token": delivery["token"]}
                if do == "ok":
                    ack = dict(body, **outcome)
                    self.call("POST", f"{path}/ack", {"acks": [ack]})
                    continue
                verb = {"retry": "fail", "error": "fail", "refuse": "refuse"}[do]
                body["reason"] = outcome.pop("reason", do)
                if "after" in outcome:
                    body["retry_in"] = outcome.pop("after")
                if outcome:
                    raise Mismatch(f"a handler does not know {outcome}")
                self.call("POST", f"{path}/{verb}", body)
        return {"handled": handled}

    def do_verify(self, take):
        return {"valid": verify(take("secret"), take("headers"), take("body"), take("now"))}

    def do_receiver(self, take):
        self.receivers.append(Receiver(take("answers")))
        return {"url": self.receivers[-1].url}

    def do_received(self, take):
        requests = [one for receiver in self.receivers for one in receiver.requests]
        return {"requests": requests}

    def do_advance(self, take):
        if not self.broker.virtual:
            take("wait")
            # Settlements are durable a moment after they are answered.
            time.sleep(max(seconds_of(take("by")), 0.3))
            return None
        return self.call("POST", "/v1/clock/advance", self.rest())

    def do_clock(self, take):
        return self.call("GET", "/v1/clock")

    def do_restart(self, take):
        self.broker.restart()
        return None

    def do_kill_leader(self, take):
        self.broker.kill_leader()
        return None

    def close(self):
        self.broker.stop()
        for receiver in self.receivers:
            receiver.server.shutdown()


def expand_expected(want, names):
    """Like `expand`, but leaves conditions other than `$repeat` as they are."""
    if isinstance(want, dict) and any(key in CONDITIONS - {"$repeat"} for key in want):
        return {key: expand(one, names) for key, one in want.items()}
    if isinstance(want, dict) and "$repeat" not in want:
        return {expand(key, names): expand_expected(one, names) for key, one in want.items()}
    if isinstance(want, list):
        return [expand_expected(one, names) for one in want]
    return expand(want, names)


def verify(secret, headers, body, now):
    """Standard Webhooks: any signature of any of the secrets, and a timestamp near `now`."""
    headers = {name.lower(): value for name, value in headers.items()}
    try:
        identity, stamp = headers["webhook-id"], headers["webhook-timestamp"]
        signatures = headers["webhook-signature"].split(" ")
        if not re.fullmatch(r"[0-9]{1,15}", stamp):
            return False
    except KeyError:
        return False
    if abs(int(stamp) - int(now)) > TOLERANCE_SECONDS:
        return False
    for one in secret if isinstance(secret, list) else [secret]:
        key = base64.b64decode(one[len("whsec_"):] if one.startswith("whsec_") else one)
        signed = f"{identity}.{stamp}.{body}".encode()
        digest = hmac.new(key, signed, hashlib.sha256).digest()
        expected = "v1," + base64.b64encode(digest).decode()
        if any(hmac.compare_digest(expected, signature) for signature in signatures):
            return True
    return False


def quote(text):
    # `.` and `..` as whole segments would be taken as parts of a path by HTTP libraries.
    return urllib.parse.quote(text, safe="").replace(".", "%2E") if text in (".", "..") else (
        urllib.parse.quote(text, safe="")
    )


def seconds_of(duration):
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
    return sum(float(n) * units[u] for n, u in re.findall(r"([0-9]+)(ms|s|m|h|d)", duration))


def fits_real_time(path):
    """Whether a scenario can run in real time on one broker: within ten seconds, without a date."""
    with open(path, encoding="utf-8") as file:
        scenario = json.load(file)
    if scenario.get("broker") == "cluster":
        return False
    moves = [step["advance"] for step in scenario["steps"] if "advance" in step]
    clock = "clock" in scenario or any("clock" in step for step in scenario["steps"])
    if clock or any("to" in move for move in moves):
        return False
    return sum(seconds_of(move["by"]) for move in moves) <= 10


def run(path, binary, store):
    """The failure of one scenario, or None."""
    started = time.monotonic()
    index = step = None
    this = None
    try:
        with open(path, encoding="utf-8") as file:
            scenario = json.load(file)
            if store == "serve":
                scenario["broker"] = "serve"
            this = Run(scenario, binary, store)
        for index, step in enumerate(this.scenario["steps"]):
            this.step(step)
        failure = None
    except Mismatch as mismatch:
        failure = str(mismatch)
    except Exception:
        failure = traceback.format_exc()
    finally:
        if this:
            this.close()
    if failure and index is not None:
        failure = f"step {index + 1}: {short(step, 300)}\n    {failure}"
    return path, failure, time.monotonic() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--binary", default=os.environ.get("PUNCTUAL_BIN", "punctual"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--store", choices=["memory", "embedded", "redis"])
    parser.add_argument("--serve", dest="store", action="store_const", const="serve")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    files = options.files or sorted(
        os.path.join(HERE, name) for name in os.listdir(HERE) if name.endswith(".json")
    )
    if options.store == "serve":
        files = [path for path in files if fits_real_time(path)]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(run, path, options.binary, options.store) for path in files]
        for one in concurrent.futures.as_completed(runs):
            path, failure, seconds = one.result()
            failed += failure is not None
            print(f"{'FAIL' if failure else 'ok  '} {seconds:6.2f}s {os.path.basename(path)}")
            if failure:
                print(f"    {failure}")
    print(f"{len(files) - failed} of {len(files)} scenarios passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
