"""Hooks of schemathesis for `tools/openapi`: what JSON Schema cannot say about a request.

A request that is meant to be right is repaired before it is sent: durations and times are moved into their ranges
(`x-minimum`, `x-maximum`), texts are cut to their bytes, and fields that exclude each other by value are dropped. A
failure is dropped if the answer says what the check did not expect: a problem of the task's state, or a batch in which
only the wrong entry is refused."""
import ipaddress, itertools, re, zlib
from urllib.parse import urlsplit

import schemathesis
from schemathesis.core.failures import AcceptedNegativeData
from schemathesis.generation import GenerationMode
from schemathesis.openapi.checks import RejectedPositiveData, UseAfterFree

KEY_BYTES, HEADERS_BYTES, STEPS = 256, 4096, 1000
UNITS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
CRONS = ["0 9 * * MON-FRI", "*/5 * * * * *", "@daily", "0 0 L * *", "0 0 0 29 2 ? 2096", "15,45 8-18/2 1W JAN,JUL ?"]
ZONES = ["UTC", "Europe/Berlin", "america/new_york", "Asia/Kathmandu", "Etc/GMT+12"]
EARLY, LATE = "2030-01-01T00:00:00Z", "9000-01-01T00:00:00+02:00"
# A request that is right may still meet a task in another state.
OF_STATE = {"version-mismatch", "not-a-watch", "not-touchable"}
RANGES = {}
NUMBERS = itertools.count()


def millis(text):
    """The length of a duration; None if the text is none."""
    iso = re.fullmatch(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", text)
    if iso:
        return sum(float(n or 0) * unit for n, unit in zip(iso.groups(), [*UNITS.values()][:5]))
    parts = re.findall(r"(\d+)([a-z]+)", text)
    return sum(int(n) * UNITS[unit] for n, unit in parts) if parts else None


def sample(values, text):
    """One of some values, always the same for the same text."""
    return values[zlib.crc32(repr(text).encode()) % len(values)]


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """Collects the ranges of durations by the names of their fields."""
    schemas = raw_schema["components"]["schemas"]

    def range_of(schema, depth=3):
        """The range of a duration, of one that may be null, or of those in a list."""
        if "$ref" in schema:
            schema = schemas[schema["$ref"].rsplit("/", 1)[1]]
        if "pattern" in schema and "x-minimum" in schema:
            return schema["x-minimum"], schema["x-maximum"]
        inner = [*schema.get("oneOf", []), schema.get("items", {})] if depth else []
        return next((found for part in inner if (found := range_of(part, depth - 1))), None)

    def collect(schema):
        if isinstance(schema, dict):
            for name, field in (schema.get("properties") or {}).items():
                if found := range_of(field):
                    RANGES[name] = found
            for part in schema.values():
                collect(part)
        elif isinstance(schema, list):
            for part in schema:
                collect(part)

    collect(schemas)
    for methods in raw_schema["paths"].values():
        for operation in methods.values():
            for parameter in operation["parameters"]:
                if found := range_of(parameter["schema"]):
                    RANGES[parameter["name"]] = found


def clamp(name, text):
    """A duration within the range of its field."""
    low, high = RANGES.get(name, (None, None))
    length = millis(text) if low else None
    if length is None or millis(low) <= length <= millis(high):
        return text
    return low if length < millis(low) else high


def cut(text):
    return text.encode()[:KEY_BYTES].decode(errors="ignore")


def repair(name, value):
    """A value of a body, repaired with all that is in it."""
    if isinstance(value, list):
        return [repair(name, entry) for entry in value]
    if isinstance(value, str):
        if name in ("at", "starts_at", "ends_at", "from", "to") and not re.match(r"(19[7-9]|2)\d", value):
            return EARLY
        return cut(value) if name in ("key", "keys", "labels") else clamp(name, value)
    if not isinstance(value, dict) or name == "payload":
        return value
    if name in ("headers", "labels"):
        pairs = {inner.lower() if name == "headers" else inner: cut(text) for inner, text in value.items()}
        return {} if sum(map(len, [*pairs, *pairs.values()])) > HEADERS_BYTES else pairs
    return repair_object({inner: repair(inner, field) for inner, field in value.items()})


def repair_object(value):
    """Fields of one object that exclude each other by their values."""
    interval = value.get("every")
    if isinstance(cron := value.get("cron"), str):
        if every := re.match(r"\s*@every\s+(\S+)", cron, re.I):
            interval = clamp("every", every[1])
            value["cron"] = f"@every {interval}"
        else:
            value["cron"] = sample(CRONS, cron)
    if interval and value.get("jitter") and millis(value["jitter"]) > millis(interval):
        value["jitter"] = "0s"
    if value.get("within") and value.get("postpone_max"):
        value["postpone_max"] = max(value["postpone_max"], value["within"], key=millis)
    for name, text in (("starts_at", EARLY), ("ends_at", LATE)):
        if value.get(name) is not None:
            value[name] = text
    if value.get("timezone") is not None:
        value["timezone"] = sample(ZONES, value["timezone"])
    if value.get("wait") is not None:
        value["wait"] = "0s"
    if isinstance(url := value.get("url"), str) and not is_allowed(url):
        value["url"] = "http://localhost:9000/"
    return repair_alarm(value)


def repair_alarm(value):
    """Parts of the rule of an alarm. The broker of the check has no mail server."""
    if "min" in value and isinstance(value.get("over"), (int, float)):
        value["over"] = round(value["over"], 3)
    if "queue" in value and isinstance(value.get("for"), str):
        value["for"] = max(value["for"], "1s", key=millis)
    if value.get("kind") in ("slack", "wecom"):
        value.pop("secret", None)
    if isinstance(value.get("to"), dict) and "mail" in value["to"]:
        value["to"] = {"http": {"url": "http://localhost:9000/"}}
    return value


def is_allowed(url):
    """Whether no configuration refuses the address; long URLs may have too many bytes."""
    try:
        host = urlsplit(url).hostname or ""
        ipaddress.ip_address(host)
        return False
    except ValueError:
        return "[" not in url.split("?")[0].split("/")[2] and len(url.encode()) <= 2048


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is None or case.meta.generation.mode != GenerationMode.POSITIVE:
        return
    if isinstance(case.body, (dict, list)):
        case.body = repair("", case.body)
    if "key" in case.path_parameters:
        case.path_parameters["key"] = cut(case.path_parameters["key"])
    headers = case.headers
    if "if-match" in headers and ("if-none-match" in headers or not headers["if-match"]):
        del headers["if-match"]
    if headers.get("idempotency-key"):
        # One that was used before gives the answer of then, for a task that may be gone.
        headers["idempotency-key"] = f"{next(NUMBERS)}-{headers['idempotency-key']}"[:KEY_BYTES].strip()
    query = case.query
    for name in list(query or {}):
        if isinstance(query[name], str) and query[name]:
            query[name] = repair(name, query[name])
    if query.get("cron"):
        query["cron"] = sample(CRONS, query["cron"])
    if query.get("timezone"):
        query["timezone"] = sample(ZONES, query["timezone"])
    if query.get("cursor"):
        query["cursor"] = ("d" if query.get("state") == "dead" or "/dead" in case.path else "t") + query["cursor"][1:]
    if "/forecast" in case.path and millis(query.get("for") or "1d") > STEPS * millis(query.get("step") or "1h"):
        query.clear()


@schemathesis.hook
def filter_failure(context, failure, case, response):
    answer = response.json() if "json" in response.headers["content-type"][0] else {}
    kind = str(answer.get("type")).removeprefix("urn:punctual:")
    if isinstance(failure, RejectedPositiveData):
        return kind not in OF_STATE
    if isinstance(failure, AcceptedNegativeData):
        entries = [*answer.get("results", []), *answer.get("problems", [])]
        return kind != "too-many" and not any("problem" in entry or "type" in entry for entry in entries)
    # A task that was cancelled is shown by its id as long as its history is kept.
    return not (isinstance(failure, UseAfterFree) and answer.get("state") == "cancelled")
