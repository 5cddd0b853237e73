//! The fields of a series in JSON that have types of their own: clock changes, misfires, overlaps,
//! and the limits of jitter and count.

use std::time::Duration;

use punctual_core::{Gap, JITTER_MAX, Misfire, Overlap, Twice};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema::{documented, duration, integer};

documented!(
    /// The jitter of a series.
    SeriesJitter,
    "SeriesJitter",
    duration(Duration::ZERO, JITTER_MAX)
);
documented!(
    /// How many times a series fires.
    FireCount,
    "FireCount",
    integer(1, u32::MAX.into())
);

/// What happens to local times that a clock change skips or repeats.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = Dst)]
#[serde(deny_unknown_fields, expecting = "an object with `gap` and `overlap`")]
pub(super) struct DstBody {
    /// Times that do not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) gap: Option<GapBody>,
    /// Times that exist twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) overlap: Option<TwiceBody>,
}

/// A local time that a clock change skips: `after` fires right after the gap, `skip` not at all.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, ToSchema)]
#[schema(as = Gap)]
#[serde(rename_all = "snake_case")]
pub(super) enum GapBody {
    After,
    Skip,
}

/// A local time that a clock change repeats: `once` fires the first time, `both` both times.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, ToSchema)]
#[schema(as = Twice)]
#[serde(rename_all = "snake_case")]
pub(super) enum TwiceBody {
    Once,
    Both,
}

/// Fires that were missed, because the broker was down for example: `fire_once` fires the
/// latest, `fire_all` the latest ones, `skip` none.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, ToSchema)]
#[schema(as = Misfire)]
#[serde(rename_all = "snake_case")]
pub(super) enum MisfireBody {
    FireOnce,
    FireAll,
    Skip,
}

/// A fire that is due while the previous one has not ended: `allow` fires it too, `skip` skips it,
/// `queue_one` fires it when the previous one has ended; only one fire waits.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, ToSchema)]
#[schema(as = Overlap)]
#[serde(rename_all = "snake_case")]
pub(super) enum OverlapBody {
    Allow,
    Skip,
    QueueOne,
}

/// Conversions between an enum of the wire and the one of the core with the same variants.
macro_rules! both_ways {
    ($wire:ident, $core:ident, [$($variant:ident),+]) => {
        impl From<$wire> for $core {
            fn from(wire: $wire) -> Self {
                match wire {
                    $($wire::$variant => Self::$variant,)+
                }
            }
        }

        impl From<$core> for $wire {
            fn from(core: $core) -> Self {
                match core {
                    $($core::$variant => Self::$variant,)+
                }
            }
        }
    };
}

both_ways!(GapBody, Gap, [After, Skip]);
both_ways!(TwiceBody, Twice, [Once, Both]);
both_ways!(MisfireBody, Misfire, [FireOnce, FireAll, Skip]);
both_ways!(OverlapBody, Overlap, [Allow, Skip, QueueOne]);
