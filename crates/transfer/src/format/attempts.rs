//! The attempts of a fire in the file, and their conversion from and to `core`.

use punctual_core::{AttemptNo, AttemptRecord, Outcome, Reason};
use serde::{Deserialize, Serialize};

use super::values::{DurationText, TimeText};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportedAttempt {
    /// Only of the first attempt, if that is not number 1. The others are numbered on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    number: Option<u32>,
    fired_at: TimeText,
    ended_at: TimeText,
    outcome: ExportedOutcome,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ExportedOutcome {
    Acked,
    Failed {
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_in: Option<DurationText>,
    },
    Refused {
        reason: String,
    },
    Expired,
}

pub(crate) fn export_attempts(attempts: &[AttemptRecord]) -> Vec<ExportedAttempt> {
    let form = |(index, attempt): (usize, &AttemptRecord)| ExportedAttempt {
        number: (index == 0 && attempt.number != AttemptNo::FIRST).then(|| attempt.number.get()),
        fired_at: TimeText(attempt.fired_at),
        ended_at: TimeText(attempt.ended_at),
        outcome: match &attempt.outcome {
            Outcome::Acked => ExportedOutcome::Acked,
            Outcome::Failed { reason, retry_in } => ExportedOutcome::Failed {
                reason: reason.as_str().to_owned(),
                retry_in: retry_in.map(DurationText),
            },
            Outcome::Refused { reason } => {
                ExportedOutcome::Refused { reason: reason.as_str().to_owned() }
            }
            Outcome::Expired => ExportedOutcome::Expired,
        },
    };
    attempts.iter().enumerate().map(form).collect()
}

pub(crate) fn read_attempts(forms: Vec<ExportedAttempt>) -> Vec<AttemptRecord> {
    let first = forms.first().and_then(|first| first.number).unwrap_or(1);
    let attempt = |(number, exported): (u32, ExportedAttempt)| AttemptRecord {
        number: AttemptNo::new(number),
        fired_at: exported.fired_at.0,
        ended_at: exported.ended_at.0,
        outcome: match exported.outcome {
            ExportedOutcome::Acked => Outcome::Acked,
            ExportedOutcome::Failed { reason, retry_in } => Outcome::Failed {
                reason: Reason::new(&reason),
                retry_in: retry_in.map(|span| span.0),
            },
            ExportedOutcome::Refused { reason } => {
                Outcome::Refused { reason: Reason::new(&reason) }
            }
            ExportedOutcome::Expired => Outcome::Expired,
        },
    };
    (first..).zip(forms).map(attempt).collect()
}
