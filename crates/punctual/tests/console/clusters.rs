//! A broker of a cluster shows the whole cluster.

use punctual_test_support::{TestCluster, until_ok};

use crate::browser::Browser;

/// How many brokers have a clock that is the same as that of the store, ahead of it or behind.
const CLOCKS: &str = "return [...document.querySelectorAll('td:last-child')]
    .filter((cell) => /same|ahead|behind/.test(cell.innerText)).length";

/// The page of one broker lists all brokers, the owner of each partition, and the tasks of all.
/// When a broker is killed, the page shows its partitions move.
#[test]
fn the_page_of_one_broker_shows_the_whole_cluster() {
    let mut cluster: TestCluster = TestCluster::on_loopback(2, &[]);
    cluster.wait_until_whole();
    let addresses = cluster.addresses();
    for number in 0..20 {
        let task = serde_json::json!({"in": "1h", "target": {"queue": "unpaid"}});
        cluster.client(0).put(&format!("order-{number}"), &task);
    }
    let mut page = Browser::open(addresses[0], "#/~cluster");
    page.expect_message("503");
    page.wait_for("2 brokers");
    page.wait_for(&addresses[1].to_string());
    page.wait_for("leader");
    // The clocks of both were compared with the one of the store.
    until_ok(|| match page.run(CLOCKS, &[]).as_i64() {
        Some(2) => Ok(()),
        other => Err(format!("two clocks, not {other:?}")),
    });
    let cells = page.run("return document.querySelectorAll('.grid li').length", &[]);
    assert_eq!(cells, cluster.partitions());
    page.go("#/shop/tasks");
    page.wait_for("order-19");
    page.go("#/~cluster");
    page.wait_for("2 brokers");
    cluster.brokers[1].kill();
    // The page may see the partitions without an owner in between.
    page.wait_for(&format!("{} → ", addresses[1]));
    page.wait_for(&format!("→ {}", addresses[0]));
    page.wait_for("1 broker");
}
