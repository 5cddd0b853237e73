//! Rounds: one fault each, under load, and what came of it.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use crate::field::{eventually, now_millis};
use crate::judge::{Judgement, all_ended, stats};
use crate::load::{Asked, Dice, House, Load, Told};
use crate::machine::Clock;
use crate::member::Member;
use crate::net::Cut;
use crate::stage::Stage;
use crate::witness::pause;

const HELD: &str = "punctual_partitions_held";
const BROKERS: u8 = 3;
const PARTITIONS: u16 = 12;
/// Longer than the lease, so that others take over.
const BEYOND_LEASE: Duration = Duration::from_millis(3_200);
/// How long a partition may stay without its broker after a kill: the lease, and what it takes to notice and to load.
const TAKEN_MAX: u128 = 3_500;

/// A machine that does much else takes longer; this is too long on any.
const TAKEN_FAR_TOO_LATE: u128 = 2 * TAKEN_MAX;
/// Over so many rounds at least one write of an earlier owner is refused: else the faults are too soft.
const ROUNDS_TO_BE_STALE: u64 = 50;

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    KillLeader,
    KillFollower,
    /// It is back before its leases are over.
    KillAndBack,
    KillAll,
    Hold,
    Terminate,
    RedisKilled,
    RedisHeld,
    RedisFull,
    RedisFailover,
    /// What one broker alone knew is gone too.
    FailoverAndKill,
    CutFromRedis,
    CutWords,
    CutAnswers,
    CutFromBrokers,
    ClockJump,
    RollingRestart,
}

pub(crate) const KINDS: [Kind; 17] = [
    Kind::KillLeader,
    Kind::Hold,
    Kind::Terminate,
    Kind::RedisKilled,
    Kind::CutFromRedis,
    Kind::CutFromBrokers,
    Kind::RedisFailover,
    Kind::KillAndBack,
    Kind::RedisFull,
    Kind::KillFollower,
    Kind::CutAnswers,
    Kind::RedisHeld,
    Kind::KillAll,
    Kind::CutWords,
    Kind::FailoverAndKill,
    Kind::ClockJump,
    Kind::RollingRestart,
];

/// All rounds of a cluster.
pub(crate) struct Run {
    stage: Stage,
    house: House,
    seed: u64,
    dice: Dice,
    wrongs: Vec<String>,
    seen: Seen,
    /// As brokers counted last.
    metrics: HashMap<(SocketAddr, &'static str), f64>,
}

/// What was seen over all rounds.
#[derive(Debug, Default)]
struct Seen {
    rounds: BTreeMap<Kind, u64>,
    asked: usize,
    counts: BTreeMap<&'static str, u64>,
    /// Milliseconds from a kill until the last of the partitions of the killed one fired again.
    taken: Vec<u128>,
    /// How late, in milliseconds, the latest was that became due while brokers handed over in good order.
    handed_over: Vec<u128>,
    stale: f64,
    rewound: f64,
}

/// What a fault has to say.
#[derive(Debug, Default)]
struct Story {
    /// A broker that was gone with these partitions from then on.
    gone: Option<(Vec<u64>, u128)>,
    /// While brokers handed over in good order.
    handing: Option<(u128, u128)>,
    wrongs: Vec<String>,
}

impl Run {
    pub(crate) fn start(seed: u64) -> Self {
        let partitions = PARTITIONS.to_string();
        // With less, a failover loses what was acknowledged: that the judge sees it can be tried.
        let durability = std::env::var("PUNCTUAL_CLUSTER_DURABILITY");
        let durability = durability.as_deref().unwrap_or("replica");
        let flags = ["--partitions", &partitions, "--durability", durability];
        let stage = Stage::on_machines(BROKERS, &flags);
        let middle = stage.net.as_ref().unwrap().middle();
        let house = House::open(&stage, middle, PARTITIONS);
        let (dice, seen) = (Dice::new(seed), Seen::default());
        let (wrongs, metrics) = (Vec::new(), HashMap::new());
        Self { stage, house, seed, dice, wrongs, seen, metrics }
    }

    /// One fault under load.
    pub(crate) fn round(&mut self, number: u64, kind: Kind) {
        let begun = now_millis();
        self.stage.wait_until_whole();
        let before = eventually(|| stats(self.stage.desk(0)));
        let load = Load::start(&self.stage, &self.house, number, self.seed);
        pause(Duration::from_millis(1_200 + self.dice.roll(800)));
        let mut story = self.fault(kind);
        // Some are asked for when all is well again.
        pause(Duration::from_millis(500));
        let asked = load.end();
        self.stage.wait_until_whole();
        let desk = self.stage.desk(usize::try_from(self.dice.roll(BROKERS.into())).unwrap());
        let ended = all_ended(desk, 50);
        let judgement = Judgement::of(&asked, &self.house, desk, &before);
        story.wrongs.extend(judgement.wrongs.iter().cloned());
        if let Err(stats) = ended {
            story.wrongs.push(format!("it does not come to rest: {stats:?}"));
        }
        let held: f64 = self.stage.desks().iter().filter_map(|it| it.metric(HELD)).sum();
        if (held - f64::from(PARTITIONS)).abs() > 0.5 {
            story.wrongs.push(format!("{held} owners of {PARTITIONS} partitions"));
        }
        let times = self.times(&mut story, &asked);
        let stale = self.grown("punctual_stale_epoch_rejected_total");
        let rewound = self.grown("punctual_store_rewound_total");
        self.seen.stale += stale;
        self.seen.rewound += rewound;
        let told = |told: Told| asked.iter().filter(|asked| asked.put == told).count();
        let (yes, no, unknown) = (told(Told::Yes), told(Told::No), told(Told::Unknown));
        if kind == Kind::RedisFull && no == 0 {
            story.wrongs.push("nobody was refused without memory".to_owned());
        }
        println!(
            "round {number} {kind:?}: {} ms, {yes} acknowledged, {no} refused, {unknown} not known; {:?}{times}; stale {stale}, rewound {rewound}",
            now_millis() - begun,
            judgement.counts,
        );
        for rough in judgement.rough.iter().filter(|_| story.handing.is_some()) {
            println!("  moved in good order, but {rough}");
        }
        for wrong in &story.wrongs {
            println!("  WRONG {wrong}");
        }
        self.wrongs
            .extend(story.wrongs.into_iter().map(|wrong| format!("{number} {kind:?}: {wrong}")));
        *self.seen.rounds.entry(kind).or_default() += 1;
        self.seen.asked += asked.len();
        for (what, count) in judgement.counts {
            *self.seen.counts.entry(what).or_default() += count;
        }
    }

    /// Says what was seen; fails if something was wrong.
    pub(crate) fn end(mut self) {
        let Seen { rounds, asked, counts, taken, handed_over, stale, rewound } = &self.seen;
        println!("{rounds:?}\n{asked} tasks: {counts:?}");
        println!("after a kill all fired again within, ms: {taken:?} (wanted: {TAKEN_MAX})");
        println!("the latest of a hand-over in good order, ms: {handed_over:?}");
        println!("stale writes refused: {stale}; store found rewound: {rewound}");
        if rounds.values().sum::<u64>() >= ROUNDS_TO_BE_STALE && *stale == 0.0 {
            self.wrongs.push("no stale write was refused in all rounds".to_owned());
        }
        if !self.wrongs.is_empty() {
            let logs = self.stage.keep_logs();
            panic!("{:#?}\nwhat the brokers said: {}", self.wrongs, logs.display());
        }
        if std::env::var_os("PUNCTUAL_CLUSTER_KEEP").is_some() {
            println!("what the brokers said: {}", self.stage.keep_logs().display());
        }
    }

    fn fault(&mut self, kind: Kind) -> Story {
        let (leader, follower) = self.stage.leader_and_follower();
        let any = usize::try_from(self.dice.roll(BROKERS.into())).unwrap();
        match kind {
            Kind::KillLeader => self.kill(leader),
            Kind::KillFollower => self.kill(follower),
            Kind::KillAndBack => {
                self.stage.members[any].kill();
                self.stage.start_again(any);
                Story::default()
            }
            Kind::KillAll => {
                self.stage.members.iter_mut().for_each(Member::kill);
                for index in 0..usize::from(BROKERS) {
                    self.stage.launch(index);
                }
                Story::default()
            }
            Kind::Hold => self.hold(any),
            Kind::Terminate => self.terminate(any),
            Kind::RollingRestart => self.restart_all(),
            Kind::RedisKilled => {
                let away = Duration::from_millis(200 + self.dice.roll(2_500));
                self.stage.redis.crash(away);
                Story::default()
            }
            Kind::RedisHeld => {
                let time = Duration::from_millis(1_000 + self.dice.roll(2_500));
                self.stage.redis.hold(time);
                Story::default()
            }
            Kind::RedisFull => self.fill_redis(),
            Kind::RedisFailover => {
                let cut = Duration::from_millis(500 + self.dice.roll(1_000));
                self.stage.redis.fail_over(cut, || {});
                Story::default()
            }
            Kind::FailoverAndKill => {
                let cut = Duration::from_millis(500 + self.dice.roll(1_000));
                let Stage { redis, members, .. } = &mut self.stage;
                redis.fail_over(cut, || members[any].kill());
                self.stage.start_again(any);
                Story::default()
            }
            Kind::CutFromRedis => self.cut_from_redis(any, Cut::Both),
            Kind::CutWords => self.cut_from_redis(any, Cut::Words),
            Kind::CutAnswers => self.cut_from_redis(any, Cut::Answers),
            Kind::CutFromBrokers => self.cut_from_brokers(any),
            Kind::ClockJump => self.jump(any),
        }
    }

    fn partitions_of(&self, index: usize) -> Vec<u64> {
        let address: SocketAddr = self.stage.desk(index).address;
        let held = eventually(|| self.stage.held(index)).by_broker.remove(&address);
        held.into_iter().flatten().collect()
    }

    fn kill(&mut self, index: usize) -> Story {
        let partitions = self.partitions_of(index);
        self.stage.members[index].kill();
        let killed_at = now_millis();
        pause(Duration::from_millis(u64::try_from(TAKEN_MAX).unwrap()));
        self.stage.start_again(index);
        Story { gone: Some((partitions, killed_at)), ..Story::default() }
    }

    fn hold(&mut self, index: usize) -> Story {
        let member = &self.stage.members[index];
        member.signal("-STOP");
        pause(BEYOND_LEASE);
        member.signal("-CONT");
        Story::default()
    }

    fn terminate(&mut self, index: usize) -> Story {
        let mut story = Story::default();
        let from = now_millis();
        let status = self.stage.members[index].stop();
        if !status.success() {
            story.wrongs.push(format!("a broker that was told to stop ended with {status}"));
        }
        let stopped = now_millis();
        println!("  stopped {} ms after SIGTERM", stopped - from);
        pause(Duration::from_millis(300));
        self.stage.start_again(index);
        self.stage.wait_until_whole();
        story.handing = Some((from, now_millis()));
        story
    }

    fn restart_all(&mut self) -> Story {
        let mut story = Story::default();
        let from = now_millis();
        for index in 0..usize::from(BROKERS) {
            story.wrongs.extend(self.terminate(index).wrongs);
        }
        story.handing = Some((from, now_millis()));
        story
    }

    fn cut_from_redis(&mut self, index: usize, cut: Cut) -> Story {
        let machine = u8::try_from(index).unwrap();
        let net = self.stage.net.as_ref().unwrap();
        net.cut_from_ports(machine, &self.stage.redis.ports(), cut);
        pause(BEYOND_LEASE);
        net.heal(machine);
        Story::default()
    }

    /// Ownership is decided in the store: nothing moves.
    fn cut_from_brokers(&mut self, index: usize) -> Story {
        let before = self.stage.epochs();
        let net = self.stage.net.as_ref().unwrap();
        let machine = u8::try_from(index).unwrap();
        net.cut_from_others(machine);
        pause(BEYOND_LEASE);
        net.heal(machine);
        self.nothing_moved(&before)
    }

    /// What is new is refused; what is there goes on, and leases are renewed.
    fn fill_redis(&mut self) -> Story {
        let before = self.stage.epochs();
        self.stage.redis.fill();
        pause(BEYOND_LEASE);
        self.stage.redis.make_room();
        self.nothing_moved(&before)
    }

    fn nothing_moved(&self, before: &[String]) -> Story {
        let mut story = Story::default();
        let after = self.stage.epochs();
        if before != after {
            story.wrongs.push(format!("partitions moved: {before:?} {after:?}"));
        }
        story
    }

    /// The clock of one broker jumps ahead or back, and then is right again.
    fn jump(&mut self, index: usize) -> Story {
        let mut story = Story::default();
        let clock = Clock::new(self.stage.logs(), "+0");
        let status = self.stage.members[index].stop();
        if !status.success() {
            story.wrongs.push(format!("a broker that was told to stop ended with {status}"));
        }
        self.stage.launch_with(index, &[], &clock.env());
        self.stage.members[index].wait_until_ready();
        self.stage.wait_until_whole();
        let jumps = ["+1", "-1", "+3600", "-3600", "+31536000", "-31536000"];
        let jump = jumps[usize::try_from(self.dice.roll(jumps.len() as u64)).unwrap()];
        clock.set(jump);
        pause(Duration::from_secs(3));
        clock.set("+0");
        pause(Duration::from_secs(1));
        let pid = self.stage.members[index].pid();
        let status = self.stage.members[index].stop();
        if !status.success() {
            story.wrongs.push(format!("a broker that was told to stop ended with {status}"));
        }
        Clock::forget(pid);
        self.stage.start_again(index);
        story
    }

    /// How long it took, where that is promised.
    fn times(&mut self, story: &mut Story, asked: &[Asked]) -> String {
        let receipts = self.house.ledger.receipts();
        let mut says = String::new();
        if let Some((partitions, gone_at)) = &story.gone {
            let again = partitions.iter().filter_map(|partition| {
                let theirs = asked.iter().filter(|asked| asked.partition == *partition);
                let got = theirs.filter_map(|asked| receipts.get(&asked.key)).flatten();
                // What was on its way from the killed one when it was killed is not the heir's.
                let after = got.map(|receipt| receipt.at_millis).filter(|at| *at > gone_at + 100);
                after.min().map(|at| at - gone_at)
            });
            let taken = again.max().unwrap_or(0);
            says += &format!("; all fired again {taken} ms after the kill");
            self.seen.taken.push(taken);
            if taken > TAKEN_FAR_TOO_LATE {
                story.wrongs.push(format!("a partition stood still for {taken} ms"));
            }
        }
        if let Some((from, to)) = story.handing {
            let (before, lags) = (self.lags(asked, 0, from), self.lags(asked, from, to));
            let middle = |lags: &[(u128, &Asked)]| lags.get(lags.len() / 2).map_or(0, |it| it.0);
            let (half_before, half) = (middle(&before), middle(&lags));
            let most_before = before.last().map_or(0, |it| it.0);
            let latest = lags.last().map_or(0, |it| it.0);
            says += &format!(
                "; due while handing over {}, half within {half} ms, the latest {latest} ms (before: {half_before}, {most_before})",
                lags.len(),
            );
            if let Some((_, asked)) = lags.last() {
                says += &format!(" of p{} at {}", asked.partition, asked.due);
            }
            self.seen.handed_over.push(latest);
        }
        says
    }

    /// How late prompt receivers were called first, of what was due in a span, sorted.
    fn lags<'a>(&self, asked: &'a [Asked], from: u128, to: u128) -> Vec<(u128, &'a Asked)> {
        let receipts = self.house.ledger.receipts();
        let mut lags: Vec<_> = asked
            .iter()
            .filter(|asked| asked.prompt)
            .filter_map(|asked| Some((receipts.get(&asked.key)?.first()?, asked)))
            .filter(|(receipt, _)| (from..to).contains(&receipt.fire_at_millis.into()))
            .map(|(receipt, asked)| {
                (receipt.at_millis.saturating_sub(receipt.fire_at_millis.into()), asked)
            })
            .collect();
        lags.sort_unstable_by_key(|(lag, _)| *lag);
        lags
    }

    /// What was counted in this round. A broker that started again counts from zero.
    fn grown(&mut self, name: &'static str) -> f64 {
        let mut grown = 0.0;
        for desk in self.stage.desks() {
            let now = desk.metric(name).unwrap_or_default();
            let last = self.metrics.insert((desk.address, name), now).unwrap_or_default();
            grown += if now < last { now } else { now - last };
        }
        grown
    }
}
