//! Retry policies: how often a fire is attempted, and how long the pauses are.
//!
//! Jitter only lengthens a pause, so no attempt comes before its backoff is over. `settle` decides
//! whether there is a further attempt.

use std::time::Duration;

use crate::attempt::AttemptNo;
use crate::limits::{
    ATTEMPTS_DEFAULT, ATTEMPTS_MAX, BACKOFF_FACTOR_MAX, BACKOFF_LIST_MAX, BACKOFF_MAX,
};
use crate::{Invalid, format_duration};

/// How often a fire is attempted, and how long the pauses are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// All attempts, including the first.
    pub attempts_max: u16,
    /// The pause before each further attempt.
    pub backoff: Backoff,
    /// How much pauses vary, so that fires that failed together are not retried together.
    pub jitter: Jitter,
}

/// The pauses between attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backoff {
    /// The same pause each time.
    Fixed(Duration),
    /// `first`, then each time multiplied by the factor, up to `max`.
    Exponential {
        /// The pause after the first attempt.
        first: Duration,
        /// In thousandths: 2000 doubles the pause.
        factor_thousandths: u32,
        /// The longest pause.
        max: Duration,
    },
    /// One pause for each further attempt; the last one is repeated.
    List(Vec<Duration>),
}

/// A fraction of the pause, in thousandths: 100 lengthens each pause by up to a tenth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Jitter(u16);

impl Jitter {
    /// Makes a jitter of a fraction from 0 to 1.
    pub fn from_share(share: f64) -> Result<Self, Invalid> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Invalid::new("jitter", format!("must be from 0 to 1, is {share}")));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
        Ok(Self((share * 1000.0).round() as u16))
    }

    /// Makes a jitter of thousandths, from 0 to 1000.
    pub fn from_thousandths(thousandths: u16) -> Result<Self, Invalid> {
        if thousandths > 1000 {
            return Err(Invalid::new("jitter", "must be from 0 to 1"));
        }
        Ok(Self(thousandths))
    }

    /// The fraction in thousandths.
    #[must_use]
    pub const fn thousandths(self) -> u16 {
        self.0
    }
}

impl Default for RetryPolicy {
    /// Five attempts with pauses of 1 s, 2 s, 4 s and 8 s, each up to a tenth longer.
    fn default() -> Self {
        Self {
            attempts_max: ATTEMPTS_DEFAULT,
            backoff: Backoff::Exponential {
                first: Duration::from_secs(1),
                factor_thousandths: 2000,
                max: Duration::from_secs(300),
            },
            jitter: Jitter(100),
        }
    }
}

impl RetryPolicy {
    /// Checks all limits. The error names the field as the caller wrote it.
    pub fn check(&self) -> Result<(), Invalid> {
        if !(1..=ATTEMPTS_MAX).contains(&self.attempts_max) {
            let problem = format!("must be from 1 to {ATTEMPTS_MAX}, is {}", self.attempts_max);
            return Err(Invalid::new("attempts_max", problem));
        }
        self.backoff.check().map_err(|invalid| invalid.within("backoff"))
    }

    /// The pause after `attempt` has failed. `entropy` determines the jitter. The same number gives
    /// the same pause, so a broker decides the same again after a crash.
    #[must_use]
    pub fn pause_after(&self, attempt: AttemptNo, entropy: u64) -> Duration {
        let pause = self.backoff.pause_after(attempt).min(BACKOFF_MAX);
        let spread = pause.as_millis() * u128::from(self.jitter.0) / 1000;
        let share = (u128::from(entropy) * spread) >> 64;
        pause + Duration::from_millis(u64::try_from(share).unwrap_or(u64::MAX))
    }
}

impl Backoff {
    fn check(&self) -> Result<(), Invalid> {
        match self {
            Self::Fixed(pause) => check_pause("fixed", *pause),
            Self::Exponential { first, factor_thousandths, max } => {
                check_pause("exponential.first", *first)?;
                check_pause("exponential.max", *max)?;
                if !(1000..=BACKOFF_FACTOR_MAX * 1000).contains(factor_thousandths) {
                    let problem = format!("must be from 1 to {BACKOFF_FACTOR_MAX}");
                    return Err(Invalid::new("exponential.factor", problem));
                }
                Ok(())
            }
            Self::List(pauses) => {
                if !(1..=BACKOFF_LIST_MAX).contains(&pauses.len()) {
                    let count = pauses.len();
                    let problem = format!("must have 1 to {BACKOFF_LIST_MAX} entries, has {count}");
                    return Err(Invalid::new("list", problem));
                }
                pauses.iter().try_for_each(|pause| check_pause("list", *pause))
            }
        }
    }

    fn pause_after(&self, attempt: AttemptNo) -> Duration {
        let retries_before = attempt.get().saturating_sub(1) as usize;
        match self {
            Self::Fixed(pause) => *pause,
            Self::Exponential { first, factor_thousandths, max } => {
                let mut millis = first.as_millis();
                for _ in 0..retries_before {
                    if millis >= max.as_millis() {
                        break;
                    }
                    millis = millis * u128::from(*factor_thousandths) / 1000;
                }
                let millis = millis.min(max.as_millis());
                Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
            }
            Self::List(pauses) => {
                pauses.get(retries_before).or(pauses.last()).copied().unwrap_or_default()
            }
        }
    }
}

fn check_pause(field: &str, pause: Duration) -> Result<(), Invalid> {
    if pause > BACKOFF_MAX {
        let (max, given) = (format_duration(BACKOFF_MAX), format_duration(pause));
        return Err(Invalid::new(field, format!("must be at most {max}, is {given}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(backoff: Backoff, jitter: u16) -> RetryPolicy {
        RetryPolicy { attempts_max: 10, backoff, jitter: Jitter(jitter) }
    }

    fn exponential(first: u64, factor_thousandths: u32, max: u64) -> Backoff {
        Backoff::Exponential {
            first: Duration::from_secs(first),
            factor_thousandths,
            max: Duration::from_secs(max),
        }
    }

    #[test]
    fn pauses_follow_the_backoff() {
        let secs = |list: &[u64]| list.iter().map(|s| Duration::from_secs(*s)).collect::<Vec<_>>();
        for (backoff, want) in [
            (Backoff::Fixed(Duration::from_secs(3)), [3, 3, 3, 3, 3]),
            (exponential(1, 2000, 300), [1, 2, 4, 8, 16]),
            (exponential(2, 1500, 6), [2, 3, 4, 6, 6]),
            (exponential(10, 2000, 5), [5, 5, 5, 5, 5]),
            (Backoff::List(secs(&[120, 600, 3600])), [120, 600, 3600, 3600, 3600]),
        ] {
            let policy = policy(backoff, 0);
            let got: Vec<u64> = (1..=5)
                .map(|no| policy.pause_after(AttemptNo::new(no), u64::MAX).as_secs())
                .collect();
            assert_eq!(got, want, "{:?}", policy.backoff);
        }
    }

    #[test]
    fn jitter_lengthens_a_pause_by_no_more_than_its_fraction() {
        let policy = policy(Backoff::Fixed(Duration::from_secs(10)), 100);
        for (entropy, want) in [(0, 10_000), (u64::MAX / 2, 10_499), (u64::MAX, 10_999)] {
            let pause = policy.pause_after(AttemptNo::FIRST, entropy);
            assert_eq!(pause.as_millis(), want, "{entropy}");
        }
    }

    #[test]
    fn the_hundredth_pause_of_the_steepest_policy_stays_within_the_limit() {
        let steep = policy(exponential(1, 100_000, 30 * 86_400), 1000);
        let pause = steep.pause_after(AttemptNo::new(100), u64::MAX);
        assert!(pause <= BACKOFF_MAX * 2, "{pause:?}");
    }

    #[test]
    fn an_error_names_the_field_and_its_limit() {
        let day31 = Duration::from_secs(31 * 86_400);
        for (policy, want) in [
            (
                RetryPolicy { attempts_max: 0, ..RetryPolicy::default() },
                "attempts_max: must be from 1 to 100, is 0",
            ),
            (policy(Backoff::Fixed(day31), 0), "backoff.fixed: must be at most 30d, is 31d"),
            (policy(Backoff::List(vec![]), 0), "backoff.list: must have 1 to 99 entries, has 0"),
            (
                policy(exponential(1, 999, 1), 0),
                "backoff.exponential.factor: must be from 1 to 100",
            ),
        ] {
            assert_eq!(policy.check().unwrap_err().to_string(), want);
        }
        for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Jitter::from_share(share).is_err(), "{share}");
        }
        assert_eq!(Jitter::from_share(0.1), Ok(Jitter(100)));
    }
}
