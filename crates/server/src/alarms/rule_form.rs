//! The rule of an alarm in JSON, parsing and writing.

use punctual_core::{AlarmRule, Invalid};
use serde::{Deserialize, Serialize};

/// The rule of an alarm.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct AlarmRuleBody {}

impl AlarmRuleBody {
    /// Checks the rule. The error names the field.
    pub(crate) fn into_rule(self) -> Result<AlarmRule, Invalid> {
        todo!()
    }

    pub(crate) fn of(rule: &AlarmRule) -> Self {
        todo!()
    }
}
