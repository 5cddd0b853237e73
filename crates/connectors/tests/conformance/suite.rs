//! The cases.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use punctual_core::{MessageAddress, Outcome};
use punctual_engine::{ConnectionState, Delivery};
use punctual_test_support::{CutLink, now_millis, pause, wait_for};

use crate::run::{CONNECTION, CourierRun, Outcomes, is_acked};

/// A message as the witness saw it: an independent client of the system.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WitnessedMessage {
    pub(crate) body: String,
    pub(crate) content_type: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
}

impl WitnessedMessage {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn id(&self) -> String {
        self.header("webhook-id").unwrap().to_owned()
    }
}

/// Settings of a connection that needs TLS, an account and a password.
pub(crate) struct SecuredSettings {
    /// The lines of the connection without `tls_ca` and `password`.
    pub(crate) settings: String,
    pub(crate) authority: PathBuf,
    pub(crate) port: u16,
    pub(crate) password: &'static str,
}

/// A kind of system: its server, and what has arrived.
pub(crate) trait SinkSystem: Sized {
    /// What attributes of CloudEvents begin with.
    const ATTRIBUTE_PREFIX: &'static str;

    /// The page of the documentation, whose first block of TOML is a connection.
    const PAGE: &'static str;

    /// What the page has and this machine has otherwise: its host, and the secured port.
    const PAGE_HOST: &'static str;

    /// A server that other tests may use as well.
    fn start() -> Self;

    /// A server that the test may kill.
    fn start_own() -> Self;

    fn port(&self) -> u16;

    /// The lines of a connection to the server, over a port that leads to it.
    fn settings(&self, port: u16) -> String;

    fn secured(&self) -> SecuredSettings;

    /// Makes a place that keeps messages, with a name that begins with `open`, and returns where
    /// deliveries go. Called once per test.
    fn make_place(&mut self) -> MessageAddress;

    /// A place for measurements, whose witness costs nothing.
    fn make_silent_place(&mut self) -> MessageAddress {
        self.make_place()
    }

    /// The messages that have arrived since the last call. Returns within a second.
    fn arrived(&mut self) -> Vec<WitnessedMessage>;

    /// A place that takes nothing; `None` if the system takes whatever it gets.
    fn no_place(&self) -> Option<MessageAddress>;

    /// Settings and a place that the server does not let them use.
    fn forbidden(&self) -> Option<(String, MessageAddress)>;

    /// Bytes of a body that the server does not take, up to the largest payload of a task.
    fn too_large(&self) -> Option<usize>;

    fn kill(&mut self);

    fn start_again(&mut self);
}

/// Deliveries of a measurement, unless `PUNCTUAL_RATE_DELIVERIES` has another number.
const RATE_DELIVERIES: usize = 100_000;
/// Deliveries of a measurement that wait or are in flight at the same time, as an owner has them.
const RATE_OUTSTANDING: usize = 4_096;
/// Bytes of the padding of each body.
const RATE_BYTES: usize = 100;

/// Cases that need what not every kind of system has.
const OPTIONAL_CASES: [&str; 3] = [
    "what_has_no_place_to_go_fails_and_harms_no_other",
    "what_the_configuration_of_the_server_forbids_fails_and_harms_no_other",
    "what_is_too_large_is_never_confirmed_and_harms_no_other",
];

/// Waits until some messages have arrived.
fn arrived(system: &mut impl SinkSystem, count: usize) -> Vec<WitnessedMessage> {
    let mut all = Vec::new();
    wait_for("messages to arrive", || {
        all.extend(system.arrived());
        all.len() >= count
    });
    all
}

fn reason(outcomes: &Outcomes, delivery: &Delivery) -> String {
    match &outcomes[&delivery.fire_id.to_string()] {
        Some(Outcome::Failed { reason, .. } | Outcome::Refused { reason }) => {
            reason.as_str().to_owned()
        }
        other => panic!("{other:?}"),
    }
}

/// Checks which cases are left out for a kind of system, each with its reason: those that it cannot
/// have, and no others.
pub(crate) fn check_table<S: SinkSystem>(table: &[(&str, Option<&str>)]) {
    let system = S::start();
    let has_case =
        [system.no_place().is_some(), system.forbidden().is_some(), system.too_large().is_some()];
    for ((name, has_case), (listed, reason)) in OPTIONAL_CASES.iter().zip(has_case).zip(table) {
        assert_eq!((name, has_case), (listed, reason.is_none()), "{reason:?}");
    }
    assert_eq!(table.len(), OPTIONAL_CASES.len());
}

pub(crate) fn confirmed_deliveries_are_there_with_body_and_headers<S: SinkSystem>() {
    let mut system = S::start();
    let place = system.make_place();
    let mut run = CourierRun::start(&system.settings(system.port()));
    let deliveries: Vec<_> = (0..300).map(|_| run.delivery(&place, 20)).collect();
    let outcomes = run.settle(deliveries.clone());
    assert!(deliveries.iter().all(|delivery| is_acked(&outcomes, delivery)), "{outcomes:?}");
    let messages = arrived(&mut system, 300);
    assert_eq!(messages.len(), 300);
    for delivery in &deliveries {
        let id = delivery.fire_id.to_string();
        let message = messages.iter().find(|message| message.id() == id).unwrap();
        assert_eq!(message.body.as_bytes(), &delivery.definition.payload.bytes()[..]);
        assert_eq!(message.content_type.as_deref(), Some("application/json"));
        let key = delivery.definition.key.as_ref().map(|key| key.as_str());
        for (name, value) in [
            ("punctual-namespace", Some("shop")),
            ("punctual-key", key),
            ("punctual-fire-at", Some(&*delivery.fire_at.to_string())),
            ("punctual-attempt", Some("1")),
            ("punctual-occasion", Some("due")),
            ("specversion", None),
        ] {
            assert_eq!(message.header(name), value, "{name}");
        }
        let lag: u64 = message.header("punctual-lag-ms").unwrap().parse().unwrap();
        assert!(lag < 60_000, "{lag}");
    }
    let view = run.view(CONNECTION);
    assert_eq!((view.confirmed, view.failed, view.in_flight), (300, 0, 0));
}

pub(crate) fn a_cloudevent_has_its_attributes<S: SinkSystem>() {
    let mut system = S::start();
    let place = system.make_place();
    let settings = format!("{}format = \"cloudevents\"\n", system.settings(system.port()));
    let mut run = CourierRun::start(&settings);
    let delivery = run.delivery(&place, 0);
    run.settle_all(vec![delivery.clone()]);
    let message = arrived(&mut system, 1).remove(0);
    let attribute = |name: &str| message.header(&format!("{}{name}", S::ATTRIBUTE_PREFIX));
    let id = delivery.fire_id.to_string();
    for (name, value) in [
        ("specversion", "1.0"),
        ("id", &*id),
        ("source", "/punctual/shop"),
        ("type", "dev.punctual.fire"),
        ("subject", "key-1"),
        ("time", &*delivery.fire_at.to_string()),
    ] {
        assert_eq!(attribute(name), Some(value), "{name}");
    }
    assert_eq!(message.content_type.as_deref(), Some("application/json"));
}

pub(crate) fn what_has_no_place_to_go_fails_and_harms_no_other<S: SinkSystem>() {
    let mut system = S::start();
    let place = system.make_place();
    let nowhere = system.no_place().unwrap();
    let mut run = CourierRun::start(&system.settings(system.port()));
    let mixed: Vec<_> =
        (0..40).map(|at| run.delivery(if at % 4 == 0 { &nowhere } else { &place }, 0)).collect();
    let outcomes = run.settle(mixed.clone());
    for (at, delivery) in mixed.iter().enumerate() {
        assert_eq!(is_acked(&outcomes, delivery), at % 4 != 0, "{at}: {outcomes:?}");
    }
    assert!(!reason(&outcomes, &mixed[0]).is_empty());
    assert_eq!(arrived(&mut system, 30).len(), 30);
    assert_eq!(run.view(CONNECTION).state, ConnectionState::Ready);
}

pub(crate) fn what_the_configuration_of_the_server_forbids_fails_and_harms_no_other<
    S: SinkSystem,
>() {
    let mut system = S::start();
    let place = system.make_place();
    let (settings, closed) = system.forbidden().unwrap();
    let mut run = CourierRun::start(&settings);
    let wrong: Vec<_> = (0..5).map(|_| run.delivery(&closed, 0)).collect();
    let right: Vec<_> = (0..20).map(|_| run.delivery(&place, 0)).collect();
    run.carry(wrong.iter().map(CourierRun::again).collect());
    run.carry(right.iter().map(CourierRun::again).collect());
    let outcomes = run.outcomes(25);
    assert!(!wrong.iter().any(|delivery| is_acked(&outcomes, delivery)), "{outcomes:?}");
    assert!(!reason(&outcomes, &wrong[0]).is_empty());
    run.settle_all(right.into_iter().filter(|one| !is_acked(&outcomes, one)).collect());
    let bodies: HashSet<String> =
        arrived(&mut system, 20).into_iter().map(|message| message.id()).collect();
    assert_eq!(bodies.len(), 20);
}

pub(crate) fn what_is_too_large_is_never_confirmed_and_harms_no_other<S: SinkSystem>() {
    let mut system = S::start();
    let place = system.make_place();
    let bytes = system.too_large().unwrap();
    let mut run = CourierRun::start(&system.settings(system.port()));
    let large = run.delivery(&place, bytes);
    let mut small: Vec<_> = (0..20).map(|_| run.delivery(&place, 0)).collect();
    // Some may fail with it once, because the server ends the channel of all.
    for round in 0..10 {
        let mut batch: Vec<_> = small.iter().map(CourierRun::again).collect();
        batch.insert(batch.len() / 2, CourierRun::again(&large));
        let outcomes = run.settle(batch);
        assert!(!is_acked(&outcomes, &large), "{outcomes:?}");
        assert!(!reason(&outcomes, &large).is_empty());
        small.retain(|delivery| !is_acked(&outcomes, delivery));
        assert!(round < 2 || small.is_empty(), "{round}: {} have failed", small.len());
    }
    let ids: HashSet<String> =
        arrived(&mut system, 20).into_iter().map(|message| message.id()).collect();
    assert_eq!(ids.len(), 20);
    assert!(!ids.contains(&large.fire_id.to_string()));
}

pub(crate) fn a_wrong_password_is_a_connection_that_is_away_with_the_reason<S: SinkSystem>() {
    let system = S::start();
    let SecuredSettings { settings, authority, password, .. } = system.secured();
    let file = tempfile::NamedTempFile::new().unwrap();
    let settings = format!(
        "{settings}tls_ca = \"{}\"\npassword = \"@{}\"\n",
        authority.display(),
        file.path().display()
    );
    std::fs::write(&file, "wrong-secret").unwrap();
    let run = CourierRun::start(&settings);
    wait_for("the reason", || run.view(CONNECTION).problem.is_some());
    let view = run.view(CONNECTION);
    assert_eq!((view.state, view.sessions), (ConnectionState::Away, 0), "{view:?}");
    let problem = run.test().unwrap_err();
    assert!(!problem.is_empty() && !problem.contains("wrong-secret"), "{problem}");
    drop(run);
    std::fs::write(&file, format!("{password}\n")).unwrap();
    CourierRun::start(&settings).test().unwrap();
}

pub(crate) fn tls_checks_the_certificate_of_the_server<S: SinkSystem>() {
    let mut system = S::start();
    let place = system.make_place();
    let SecuredSettings { settings, authority, password, .. } = system.secured();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, password).unwrap();
    let settings = format!("{settings}password = \"@{}\"\n", file.path().display());
    let trusting = format!("{settings}tls_ca = \"{}\"\n", authority.display());
    let mut run = CourierRun::start(&trusting);
    let delivery = run.delivery(&place, 0);
    run.settle_all(vec![delivery]);
    assert_eq!(arrived(&mut system, 1).len(), 1);
    let other = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&other, punctual_test_support::make_certificate().0).unwrap();
    for (settings, what) in [
        (settings.clone(), "public authorities"),
        (format!("{settings}tls_ca = \"{}\"\n", other.path().display()), "another authority"),
    ] {
        let refused = CourierRun::start(&settings).test().unwrap_err();
        assert!(refused.to_lowercase().contains("certificate"), "{what}: {refused}");
    }
}

pub(crate) fn a_server_that_was_killed_is_used_again_and_nothing_is_lost<S: SinkSystem>() {
    let mut system = S::start_own();
    let place = system.make_place();
    let mut run = CourierRun::start(&system.settings(system.port()));
    let before: Vec<_> = (0..50).map(|_| run.delivery(&place, 0)).collect();
    run.settle_all(before.clone());
    assert_eq!(arrived(&mut system, 50).len(), 50);
    system.kill();
    wait_for("the connection to be away", || run.view(CONNECTION).state == ConnectionState::Away);
    let during = run.delivery(&place, 0);
    let outcomes = run.settle(vec![CourierRun::again(&during)]);
    // It went back to its owner unsent, or it was sent over a session that was not yet lost.
    assert!(!is_acked(&outcomes, &during), "{outcomes:?}");
    system.start_again();
    run.wait_until_ready();
    let after: Vec<_> = (0..50).map(|_| run.delivery(&place, 0)).collect();
    let mut all = after.clone();
    all.push(during);
    run.settle_all(all.clone());
    let ids: HashSet<String> =
        arrived(&mut system, all.len()).into_iter().map(|message| message.id()).collect();
    assert!(all.iter().all(|delivery| ids.contains(&delivery.fire_id.to_string())));
}

pub(crate) fn a_link_that_is_cut_after_the_send_is_an_unknown_outcome_and_the_same_id_again<
    S: SinkSystem,
>() {
    let mut system = S::start();
    let place = system.make_place();
    let link = CutLink::to(system.port());
    let mut run = CourierRun::start(&format!("{}sessions = 1\n", system.settings(link.port)));
    run.wait_until_ready();
    link.silence();
    let delivery = run.delivery(&place, 0);
    run.carry(vec![CourierRun::again(&delivery)]);
    let first = arrived(&mut system, 1);
    link.cut();
    let outcomes = run.outcomes(1);
    assert!(!reason(&outcomes, &delivery).is_empty());
    wait_for("the connection to be away", || run.view(CONNECTION).state == ConnectionState::Away);
    link.mend();
    run.wait_until_ready();
    run.settle_all(vec![delivery.clone()]);
    let id = delivery.fire_id.to_string();
    assert_eq!(first[0].id(), id);
    for message in system.arrived() {
        assert_eq!(message.id(), id);
    }
}

pub(crate) fn at_most_once_is_not_sent_again_after_a_link_was_cut<S: SinkSystem>() {
    let mut system = S::start();
    let place = system.make_place();
    let link = CutLink::to(system.port());
    let mut run = CourierRun::start(&format!("{}sessions = 1\n", system.settings(link.port)));
    run.wait_until_ready();
    link.silence();
    let delivery = run.delivery_at_most_once(&place);
    run.carry(vec![delivery.clone()]);
    let first = arrived(&mut system, 1);
    link.cut();
    let outcomes = run.outcomes(1);
    assert_eq!(outcomes[&delivery.fire_id.to_string()], Some(Outcome::Expired));
    link.mend();
    run.wait_until_ready();
    // A session that is open again sends nothing of the one before.
    let other = run.delivery(&place, 0);
    run.settle_all(vec![other.clone()]);
    let mut ids: Vec<String> = first.iter().map(WitnessedMessage::id).collect();
    ids.extend(arrived(&mut system, 1).iter().map(WitnessedMessage::id));
    assert_eq!(ids, [delivery.fire_id.to_string(), other.fire_id.to_string()]);
}

pub(crate) fn a_slow_server_delays_no_other_connection<S: SinkSystem>() {
    let mut system = S::start();
    let place = system.make_place();
    let link = CutLink::to(system.port());
    let (slow, fast) = (system.settings(link.port), system.settings(system.port()));
    let mut run = CourierRun::start_all(&[("slow", &slow), (CONNECTION, &fast)]);
    run.wait_until_ready();
    wait_for("the slow one", || run.view("slow").state == ConnectionState::Ready);
    link.silence();
    let held: Vec<_> = (0..600).map(|_| run.delivery_over("slow", &place, 0)).collect();
    run.carry(held);
    let others: Vec<_> = (0..200).map(|_| run.delivery(&place, 0)).collect();
    let outcomes = run.settle(others.clone());
    assert!(others.iter().all(|delivery| is_acked(&outcomes, delivery)));
    assert!(run.view("slow").in_flight > 0);
    link.mend();
    let late = run.outcomes(600);
    assert!(late.values().all(|outcome| *outcome == Some(Outcome::Acked)), "{late:?}");
}

pub(crate) fn deliveries_of_one_session_arrive_in_order<S: SinkSystem>() {
    let mut system = S::start();
    let place = system.make_place();
    let settings = format!("{}sessions = 1\n", system.settings(system.port()));
    let mut run = CourierRun::start(&settings);
    run.wait_until_ready();
    let deliveries: Vec<_> = (0..700).map(|_| run.delivery(&place, 0)).collect();
    let sent: Vec<String> = deliveries.iter().map(|one| one.fire_id.to_string()).collect();
    let outcomes = run.settle(deliveries);
    assert!(outcomes.values().all(|outcome| *outcome == Some(Outcome::Acked)));
    let found: Vec<String> =
        arrived(&mut system, sent.len()).iter().map(WitnessedMessage::id).collect();
    assert!(found == sent, "out of order");
}

pub(crate) fn a_courier_that_drains_returns_what_it_has_not_sent<S: SinkSystem>() {
    let mut system = S::start();
    let place = system.make_place();
    let link = CutLink::to(system.port());
    let settings = format!("{}sessions = 1\n", system.settings(link.port));
    let mut run = CourierRun::start(&settings);
    run.wait_until_ready();
    link.silence();
    let deliveries: Vec<_> = (0..300).map(|_| run.delivery(&place, 0)).collect();
    let first = deliveries[0].clone();
    run.carry(vec![CourierRun::again(&first)]);
    arrived(&mut system, 1);
    run.carry(deliveries[1..].iter().map(CourierRun::again).collect());
    assert!(!run.courier().is_idle());
    run.courier().close();
    let unsent = run.outcomes(299);
    assert!(unsent.values().all(Option::is_none), "{unsent:?}");
    link.mend();
    let sent = run.outcomes(1);
    assert!(is_acked(&sent, &first));
    wait_for("the courier to be idle", || run.courier().is_idle());
    pause(Duration::from_millis(50));
    assert!(system.arrived().is_empty());
}

pub(crate) fn the_configuration_of_the_documentation_works<S: SinkSystem>() {
    let system = S::start();
    let SecuredSettings { authority, password, port, .. } = system.secured();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, password).unwrap();
    let block = S::PAGE.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let mut settings = String::new();
    for line in block.lines().skip(1) {
        let line = match line.split(' ').next() {
            Some("password") => format!("password = \"@{}\"", file.path().display()),
            Some("tls_ca") => format!("tls_ca = \"{}\"", authority.display()),
            // The suite opens its connections to all namespaces.
            Some("namespaces") => continue,
            _ => line.replace(S::PAGE_HOST, &format!("127.0.0.1:{port}")),
        };
        settings.push_str(&line);
        settings.push('\n');
    }
    CourierRun::start(&settings).test().unwrap();
}

/// Prints how many deliveries a second are confirmed, and the CPU time of this process for each.
pub(crate) fn rate_of_confirmed_deliveries<S: SinkSystem>() {
    let wanted = std::env::var("PUNCTUAL_RATE_DELIVERIES").ok();
    let count = wanted.map_or(RATE_DELIVERIES, |text| text.parse().unwrap());
    let mut system = S::start_own();
    let place = system.make_silent_place();
    let mut run = CourierRun::start(&system.settings(system.port()));
    run.wait_until_ready();
    let mut waiting: Vec<_> = (0..count).map(|_| run.delivery(&place, RATE_BYTES)).collect();
    let (began, cpu_before) = (now_millis(), cpu_millis());
    let (mut outstanding, mut done) = (0, 0);
    while done < count {
        let room = (RATE_OUTSTANDING - outstanding).min(waiting.len());
        run.carry(waiting.split_off(waiting.len() - room));
        outstanding += room;
        let outcomes = run.next_outcomes();
        assert!(outcomes.values().all(|outcome| *outcome == Some(Outcome::Acked)));
        outstanding -= outcomes.len();
        done += outcomes.len();
    }
    let (millis, cpu) = (now_millis() - began, cpu_millis() - cpu_before);
    let per_second = count as u128 * 1000 / millis.max(1);
    let cpu_each = cpu * 1000 / count as u128;
    println!("{count} confirmed in {millis} ms: {per_second}/s, CPU {cpu_each} us each");
}

/// The CPU time of this process, by the machine's clock ticks of 10 ms.
fn cpu_millis() -> u128 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u128>().unwrap() * 10).sum()
}
