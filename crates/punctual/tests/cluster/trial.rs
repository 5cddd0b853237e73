//! A trial: a fault under load, after which the cluster comes to rest and is judged. The same for every stage.

use std::time::Duration;

use crate::field::{eventually, now_millis};
use crate::judge::{Judgement, all_ended, stats};
use crate::lasting::Lasting;
use crate::load::{Asked, Dice, House, Load, Told};
use crate::stage::{Servers, Stage};
use crate::witness::pause;

const HELD: &str = "punctual_partitions_held";

/// What came of it.
pub(crate) struct Trial<T> {
    pub(crate) asked: Vec<Asked>,
    pub(crate) judgement: Judgement,
    /// What the fault has to say.
    pub(crate) story: T,
    pub(crate) took_ms: u128,
}

impl<T> Trial<T> {
    pub(crate) fn of<R: Servers>(
        stage: &mut Stage<R>,
        house: &House,
        (number, seed): (u64, u64),
        dice: &mut Dice,
        fault: impl FnOnce(&mut Stage<R>, &mut Dice) -> T,
    ) -> Self {
        let begun = now_millis();
        stage.wait_until_whole();
        let before = eventually(|| stats(stage.desk(0)));
        let lasting = Lasting::start(stage, house, number, seed);
        let load = Load::start(stage, house, number, seed);
        pause(Duration::from_millis(1_200 + dice.roll(800)));
        let story = fault(stage, dice);
        // Some are asked for when all is well again.
        pause(Duration::from_millis(500));
        let (asked, lasting) = (load.end(), lasting.end());
        stage.wait_until_whole();
        let desk = stage.desk(usize::try_from(dice.roll(stage.members.len() as u64)).unwrap());
        let well_at = lasting.pause(house, desk);
        let ended = all_ended(desk, 50);
        let mut judgement = Judgement::of(&asked, house, desk, &before, lasting.count());
        match well_at {
            Ok(well_at) => judgement.add(lasting.judge(house, desk, well_at)),
            Err(stands) => judgement.wrongs.push(stands),
        }
        if let Err(stats) = ended {
            judgement.wrongs.push(format!("it does not come to rest: {stats:?}"));
        }
        let held: f64 = stage.desks().iter().filter_map(|desk| desk.metric(HELD)).sum();
        let partitions = stage.partitions();
        #[allow(clippy::cast_precision_loss, reason = "there are few")]
        if (held - partitions as f64).abs() > 0.5 {
            judgement.wrongs.push(format!("{held} owners of {partitions} partitions"));
        }
        Self { asked, judgement, story, took_ms: now_millis() - begun }
    }

    /// How many were acknowledged, refused, and not known.
    pub(crate) fn told(&self) -> [usize; 3] {
        [Told::Yes, Told::No, Told::Unknown]
            .map(|told| self.asked.iter().filter(|asked| asked.put == told).count())
    }
}
