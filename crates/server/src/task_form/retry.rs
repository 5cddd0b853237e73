//! The retry policy of a task in JSON: its fields, their limits, parsing and writing.

use std::time::Duration;

use punctual_core::{
    ATTEMPTS_DEFAULT, ATTEMPTS_MAX, BACKOFF_FACTOR_MAX, BACKOFF_LIST_MAX, BACKOFF_MAX, Backoff,
    Invalid, Jitter, RetryPolicy, format_duration,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::time::parse_duration_field;
use super::whole_number::WholeNumber;
use crate::schema::{array, count, documented, duration, number, one_field, reference};

documented!(
    /// A pause between two attempts.
    Pause,
    "Pause",
    duration(Duration::ZERO, BACKOFF_MAX)
);
documented!(
    /// The pauses of a backoff list.
    PauseList,
    "PauseList",
    array(&reference::<Pause>(), 1, BACKOFF_LIST_MAX)
);
documented!(
    /// The factor of an exponential backoff.
    Factor,
    "Factor",
    {
        let mut factor = number(1.0, BACKOFF_FACTOR_MAX.into());
        factor["default"] = ExponentialBody::factor_default().into();
        factor
    }
);
documented!(
    /// Attempts of one fire.
    AttemptsMax,
    "AttemptsMax",
    count(1, ATTEMPTS_MAX.into(), ATTEMPTS_DEFAULT.into())
);
documented!(
    /// A share of a pause.
    Share,
    "Share",
    number(0.0, 1.0)
);

/// How failed attempts are repeated.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = RetryPolicy)]
#[serde(deny_unknown_fields, expecting = "an object with `attempts_max`, `backoff` and `jitter`")]
pub(super) struct RetryBody {
    /// Attempts of one fire, the first included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AttemptsMax>)]
    attempts_max: Option<WholeNumber>,
    /// The pauses between attempts. Default: exponential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backoff: Option<BackoffBody>,
    /// The random share of each pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Share>)]
    jitter: Option<f64>,
}

/// The pauses between attempts.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BackoffBody {
    /// The same pause before every further attempt.
    Fixed(String),
    /// Pauses that grow.
    Exponential(ExponentialBody),
    /// One pause per further attempt. The last one is used again if there are more attempts.
    List(Vec<String>),
}

/// Pauses that grow by a factor.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = ExponentialBackoff)]
#[serde(deny_unknown_fields, expecting = "an object with `first`, `factor` and `max`")]
pub(super) struct ExponentialBody {
    /// The first pause.
    #[schema(value_type = Pause)]
    first: String,
    /// What each pause is multiplied by to get the next.
    #[serde(default = "ExponentialBody::factor_default")]
    #[schema(value_type = Factor)]
    factor: f64,
    /// The longest pause.
    #[serde(default = "ExponentialBody::max_default")]
    #[schema(value_type = Pause)]
    max: String,
}

impl ExponentialBody {
    fn factor_default() -> f64 {
        2.0
    }

    fn max_default() -> String {
        "5m".to_owned()
    }
}

documented!(
    impl BackoffBody,
    "Backoff",
    {
        let mut backoff = one_field(&[
            ("fixed", reference::<Pause>()),
            ("exponential", reference::<ExponentialBody>()),
            ("list", reference::<PauseList>()),
        ]);
        backoff["description"] = "The pauses between attempts: the same each time, growing, or one \
                                  per further attempt, of which the last is used again."
            .into();
        backoff
    },
    uses ExponentialBody,
    uses PauseList
);

impl RetryBody {
    pub(super) fn into_policy(self) -> Result<RetryPolicy, Invalid> {
        let default = RetryPolicy::default();
        let backoff = match self.backoff {
            Some(backoff) => backoff.into_backoff().map_err(|i| i.within("backoff"))?,
            None => default.backoff,
        };
        let attempts_max = match self.attempts_max {
            Some(WholeNumber(count)) => u16::try_from(count).map_err(|_| {
                let problem = format!("must be from 1 to {ATTEMPTS_MAX}, is {count}");
                Invalid::new("attempts_max", problem)
            })?,
            None => default.attempts_max,
        };
        Ok(RetryPolicy {
            attempts_max,
            backoff,
            jitter: self.jitter.map_or(Ok(default.jitter), Jitter::from_share)?,
        })
    }

    pub(super) fn of(policy: &RetryPolicy) -> Self {
        let backoff = match &policy.backoff {
            Backoff::Fixed(pause) => BackoffBody::Fixed(format_duration(*pause)),
            Backoff::Exponential { first, factor_thousandths, max } => {
                BackoffBody::Exponential(ExponentialBody {
                    first: format_duration(*first),
                    factor: f64::from(*factor_thousandths) / 1000.0,
                    max: format_duration(*max),
                })
            }
            Backoff::List(pauses) => {
                BackoffBody::List(pauses.iter().copied().map(format_duration).collect())
            }
        };
        Self {
            attempts_max: Some(WholeNumber(policy.attempts_max.into())),
            backoff: Some(backoff),
            jitter: Some(f64::from(policy.jitter.thousandths()) / 1000.0),
        }
    }
}

impl BackoffBody {
    fn into_backoff(self) -> Result<Backoff, Invalid> {
        match self {
            Self::Fixed(pause) => Ok(Backoff::Fixed(parse_duration_field("fixed", &pause)?)),
            Self::Exponential(body) => Ok(Backoff::Exponential {
                first: parse_duration_field("exponential.first", &body.first)?,
                factor_thousandths: factor_thousandths(body.factor)?,
                max: parse_duration_field("exponential.max", &body.max)?,
            }),
            Self::List(pauses) => {
                let pauses = pauses.iter().map(|pause| parse_duration_field("list", pause));
                Ok(Backoff::List(pauses.collect::<Result<_, _>>()?))
            }
        }
    }
}

/// Converts a backoff factor to thousandths. Its range is checked before it is rounded.
pub(crate) fn factor_thousandths(factor: f64) -> Result<u32, Invalid> {
    if !(1.0..=f64::from(BACKOFF_FACTOR_MAX)).contains(&factor) {
        let problem = format!("must be from 1 to {BACKOFF_FACTOR_MAX}");
        return Err(Invalid::new("exponential.factor", problem));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "just checked")]
    Ok((factor * 1000.0).round() as u32)
}
