//! Host names whose lookup takes seconds, each with many due webhooks. The receiver closes its
//! connections, so that every delivery needs a lookup.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::requests::webhook;
use crate::clock::{BenchTimer, pause};
use crate::receiver::{AnswerManner, BenchReceiver};
use crate::tenants::context::LoadContext;

const NAMES: u64 = 200;
const WEBHOOKS: u64 = 10_000;
/// How long the first question may take.
const QUESTION_MAX: Duration = Duration::from_secs(30);

pub(super) async fn run(context: &LoadContext) -> anyhow::Result<()> {
    let counts = context.clone();
    let receive = move |_: &_| counts.add("received", 1);
    let receiver = BenchReceiver::start(Ipv4Addr::LOCALHOST, AnswerManner::Close, receive).await?;
    let port = receiver.address.port();
    let due =
        move |number| webhook(number, format!("http://n{}.slow.test:{port}/", number % NAMES));
    context.schedule(WEBHOOKS, due).await?;
    let questions = context.servers.questions.as_ref().context("the row has no name server")?;
    let timer = BenchTimer::start();
    while questions.load(Ordering::SeqCst) == 0 {
        ensure!(timer.elapsed() < QUESTION_MAX, "the broker looked up no name");
        pause(10).await;
    }
    context.establish();
    loop {
        pause(100).await;
        context.add("slow questions", questions.swap(0, Ordering::SeqCst));
    }
}
