//! How much the browser loads.

use punctual_test_support::TestBroker;

use crate::browser::Browser;

/// All that a first view loads of the console, compressed.
const BYTES_MAX: u64 = 60 * 1024;

/// The overview of a namespace is the view that loads most: it has the charts.
#[test]
fn the_first_view_loads_at_most_60_kb() {
    let broker = TestBroker::start(&[]);
    broker.put("order-1", r#"{"in": "1h", "target": {"queue": "unpaid"}}"#);
    for view in ["", "#/shop", "#/shop/tasks", "#/shop/tasks/order-1", "#/shop/dead"] {
        let page = Browser::open(broker.address, view);
        page.wait_for_element("main h1");
        if view == "#/shop" {
            page.wait_for_element(".uplot");
        }
        let script = "return [...performance.getEntriesByType('navigation'),
            ...performance.getEntriesByType('resource')]
            .filter((one) => !new URL(one.name).pathname.startsWith('/v1/'))
            .map((one) => [one.name, one.encodedBodySize])";
        let files = page.run(script, &[]);
        let files = files.as_array().unwrap();
        assert!(files.len() > 10, "{files:?}");
        let bytes: u64 = files.iter().map(|file| file[1].as_u64().unwrap()).sum();
        assert!(bytes <= BYTES_MAX, "{view:?} loads {bytes} bytes: {files:#?}");
    }
}
