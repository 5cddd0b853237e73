//! The faults of a round: what is done to brokers, to Redis and to the links between them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::field::{eventually, now_millis};
use crate::load::Dice;
use crate::machine::Clock;
use crate::member::Member;
use crate::net::Cut;
use crate::round::{BROKERS, Kind, Story, TAKEN_MAX};
use crate::stage::Stage;
use crate::witness::pause;

/// Longer than the lease, so that others take over.
const BEYOND_LEASE: Duration = Duration::from_millis(3_200);

/// What makes them.
pub(crate) struct Faults<'a> {
    pub(crate) stage: &'a mut Stage,
    pub(crate) dice: &'a mut Dice,
}

impl Faults<'_> {
    pub(crate) fn make(mut self, kind: Kind) -> Story {
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
}
