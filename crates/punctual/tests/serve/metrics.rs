//! Metrics of a broker.

use std::thread;

use punctual_test_support::{TestBroker, WAIT_MAX, WebhookReceiver, now_millis, task};

/// Returns the value of one line of `/metrics`, or zero.
pub(crate) fn metric(broker: &TestBroker, line: &str) -> f64 {
    let (status, page) = broker.call("GET", "/metrics", &[], "");
    assert_eq!(status, 200);
    let page = page.as_str().unwrap().to_owned();
    let found =
        page.lines().find_map(|got| got.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or(0.0)
}

/// Waits until a metric has a value.
pub(crate) fn until_metric(broker: &TestBroker, line: &str, want: f64) {
    let begun = now_millis();
    while (metric(broker, line) - want).abs() > f64::EPSILON {
        assert!(now_millis() < begun + WAIT_MAX.as_millis(), "{line} becomes {want}");
        thread::yield_now();
    }
}

#[test]
fn metrics_count_what_happened() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    broker.put("a", task(r#""in": "0s""#, &receiver.url));
    broker.get("missing");
    receiver.next();
    until_metric(&broker, r#"punctual_attempts_total{outcome="acked"}"#, 1.0);
    let (_, page) = broker.call("GET", "/metrics", &[], "");
    let page = page.as_str().unwrap();
    let requests = |method: &str, status: &str| {
        let route = "/v1/{namespace}/tasks/{key}";
        format!(
            r#"punctual_requests_total{{method="{method}",route="{route}",status="{status}"}} 1"#
        )
    };
    for line in [
        "punctual_lag_seconds_count 1",
        "punctual_early_total 0",
        &requests("PUT", "201"),
        &requests("GET", "404"),
        "# TYPE punctual_commit_tasks histogram",
        "# TYPE punctual_commit_seconds histogram",
        "# TYPE punctual_connections gauge",
        "# TYPE punctual_build info",
        "# EOF",
    ] {
        assert!(page.lines().any(|got| got == line), "{line}\n{page}");
    }
    assert!(!page.contains("shop"), "no label has a name chosen by a caller");
}
