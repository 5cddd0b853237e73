//! The token of a lease. Workers get it with a delivery and settle the delivery with it.
//!
//! As text it is sixteen hexadecimal digits. `lease` creates and checks tokens.

use std::fmt;
use std::str::FromStr;

/// Settles a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LeaseToken(pub(crate) u64);

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for LeaseToken {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}
