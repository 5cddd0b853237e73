//! Addresses that webhooks may not call.

use std::sync::Arc;

use punctual_test_support::{TestBroker, task};

use crate::metrics::{metric, until_metric};

#[test]
fn a_forbidden_address_is_refused_when_the_task_is_scheduled() {
    let broker = TestBroker::start(&[]);
    let own = format!("http://{}/v1/shop/tasks", broker.address);
    for url in [
        own.as_str(),
        "http://169.254.169.254/latest/meta-data",
        "http://[fd00:ec2::254]/",
        "http://[::ffff:169.254.169.254]/",
        "http://10.0.0.1/",
        "http://192.168.1.1:8080/",
        "http://0.0.0.0:80/",
        "http://[fe80::1]/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
    ] {
        let (status, problem) = broker.put("a", task(r#""in": "1h""#, url));
        assert_eq!(status, 422, "{url}: {problem}");
        assert_eq!(problem["field"], "target.http.url", "{problem}");
    }
    let private = TestBroker::start(&["--allow-private-targets"]);
    for (url, want) in [
        ("http://10.0.0.1/", 201),
        ("http://169.254.169.254/", 422),
        ("http://100.100.100.200/", 422),
    ] {
        let (status, problem) =
            private.call("POST", "/v1/shop/tasks", &[], task(r#""in": "1h""#, url));
        assert_eq!(status, want, "{url}: {problem}");
    }
}

#[test]
fn a_name_of_a_forbidden_address_is_refused_at_delivery_without_a_retry() {
    let broker = TestBroker::start(&[]);
    let port = broker.address.port();
    // The broker's own port by name, and by spellings that only the resolver understands.
    for (n, host) in ["localhost", "127.1", "2130706433"].iter().enumerate() {
        let url = format!("http://{host}:{port}/v1/shop/tasks");
        let (status, answer) = broker.put(&format!("k{n}"), task(r#""in": "0s""#, &url));
        assert_eq!(status, 201, "{answer}");
    }
    until_metric(&broker, r#"punctual_attempts_total{outcome="refused"}"#, 3.0);
    assert_eq!(metric(&broker, r#"punctual_attempts_total{outcome="failed"}"#), 0.0);
}

#[test]
fn a_broker_on_all_addresses_does_not_call_its_own_machine() {
    let start = |flags: &[&str]| {
        TestBroker::start_at("0.0.0.0:0", Arc::new(tempfile::tempdir().unwrap()), flags)
    };
    let body = task(r#""in": "1h""#, "http://127.0.0.1:9/");
    let broker = start(&["--insecure"]);
    assert_eq!(broker.put("a", &body).0, 422);
    let broker = start(&["--insecure", "--allow-private-targets"]);
    assert_eq!(broker.put("a", &body).0, 201);
    // Its own port stays forbidden, at every address that it listens on.
    for host in ["127.0.0.1", "127.0.0.2"] {
        let url = format!("http://{host}:{}/", broker.address.port());
        assert_eq!(broker.put("a", task(r#""in": "1h""#, &url)).0, 422, "{url}");
    }
    let broker = start(&["--token", "shop=aaa"]);
    assert_eq!(broker.put("a", &body).0, 401, "with a token --insecure is not needed");
}
