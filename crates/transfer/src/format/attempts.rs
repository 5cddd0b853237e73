//! The attempts of a fire in the file, and their conversion from and to `core`.

use anyhow::anyhow;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use punctual_core::{Answer, AttemptNo, AttemptRecord, Outcome, Reason};
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<ExportedAnswer>,
}

/// What the receiver answered. A worker's result has no status.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedAnswer {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    content_type: String,
    base64: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
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
        answer: attempt.answer.as_deref().map(export_answer),
    };
    attempts.iter().enumerate().map(form).collect()
}

fn export_answer(answer: &Answer) -> ExportedAnswer {
    ExportedAnswer {
        status: answer.status(),
        content_type: answer.content_type().to_owned(),
        base64: STANDARD.encode(answer.body()),
        truncated: answer.is_truncated(),
    }
}

fn read_answer(exported: &ExportedAnswer) -> anyhow::Result<Box<Answer>> {
    let ExportedAnswer { status, content_type, base64, truncated } = exported;
    let body = STANDARD.decode(base64).map_err(|error| anyhow!("answer.base64: {error}"))?;
    Ok(Box::new(Answer::from_stored(*status, content_type, &body, *truncated)))
}

pub(crate) fn read_attempts(forms: Vec<ExportedAttempt>) -> anyhow::Result<Vec<AttemptRecord>> {
    let first = forms.first().and_then(|first| first.number).unwrap_or(1);
    let attempt = |(number, exported): (u32, ExportedAttempt)| {
        Ok(AttemptRecord {
            answer: exported.answer.as_ref().map(read_answer).transpose()?,
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
        })
    };
    (first..).zip(forms).map(attempt).collect()
}
