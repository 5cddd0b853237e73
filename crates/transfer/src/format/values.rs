//! Values of the file format: instants, durations, and the names of enum variants.

use std::borrow::Cow;
use std::time::Duration;

use punctual_core::{
    DeadReason, Gap, Guarantee, Misfire, Occasion, Overlap, SkipReason, TaskState, Timestamp,
    Twice, format_duration, parse_duration,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An instant, as RFC 3339 text with milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeText(pub(crate) Timestamp);

impl Serialize for TimeText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TimeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <Cow<'de, str>>::deserialize(deserializer)?;
        Timestamp::parse_rfc3339(&text).map(Self).map_err(de::Error::custom)
    }
}

/// A duration, as `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DurationText(pub(crate) Duration);

impl Serialize for DurationText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(self.0))
    }
}

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <Cow<'de, str>>::deserialize(deserializer)?;
        parse_duration(&text).map(Self).map_err(de::Error::custom)
    }
}

/// Defines the names that the file uses for the variants of an enum of `core`.
macro_rules! names {
    ($name:ident of $of:ident: $($value:ident),+) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[allow(clippy::enum_variant_names, reason = "the names are those of the core")]
        pub(crate) enum $name { $($value),+ }

        impl From<$of> for $name {
            fn from(value: $of) -> Self {
                match value { $($of::$value => Self::$value),+ }
            }
        }

        impl From<$name> for $of {
            fn from(name: $name) -> Self {
                match name { $($name::$value => Self::$value),+ }
            }
        }
    };
}

names!(StateName of TaskState: Scheduled, Firing, Paused, Done, Dead, Cancelled);
names!(GuaranteeName of Guarantee: AtMostOnce, AtLeastOnce, ExactlyOnce);
names!(OccasionName of Occasion: Due, Manual, Return);
names!(DeadName of DeadReason: Exhausted, Refused, Expired, Unknown);
names!(SkipName of SkipReason: Misfire, Overlap, Paused);
names!(MisfireName of Misfire: FireOnce, FireAll, Skip);
names!(OverlapName of Overlap: Allow, Skip, QueueOne);
names!(GapName of Gap: After, Skip);
names!(TwiceName of Twice: Once, Both);
