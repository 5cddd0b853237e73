//! An order that is not paid in time: schedules a task, and cancels the order when the task is due.
//!
//! Run it with a broker on 127.0.0.1:7400 (or at `PUNCTUAL_BROKER`):
//! `cargo run --release -p punctual-client --example order_timeout`.

#![expect(clippy::print_stdout, reason = "an example prints what it does")]

use std::time::Duration;

use punctual_client::{Client, Dedup, Delivery, Failure};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = std::env::var("PUNCTUAL_BROKER");
    let client = Client::connect(broker.as_deref().unwrap_or("http://127.0.0.1:7400"))?;
    let shop = client.namespace("shop");

    // Check after 15 minutes (here: one second) whether order 44 was paid.
    let task = shop.task().key("order-44").delay(Duration::from_secs(1)).queue("orders");
    task.payload_json(&serde_json::json!({"order": 44})).schedule().await?;

    // The worker remembers fire ids, so that a delivery that comes twice takes effect once.
    let (done, mut finished) = mpsc::channel(1);
    let worker = shop
        .worker("orders")
        .concurrency(8)
        .dedup(Dedup::in_memory(10_000))
        .handler(move |delivery: Delivery| {
            let done = done.clone();
            async move {
                let order: serde_json::Value = delivery.json()?;
                println!("cancelling order {}", order["order"]);
                _ = done.send(()).await;
                Ok::<_, Failure>(())
            }
        })
        .spawn();
    finished.recv().await;
    worker.stop().await?;
    Ok(())
}
