//! Whole numbers in requests: JSON makes no difference between `5` and `5.0`, so both are read.
//!
//! A number beyond 64 bits becomes the largest or smallest one, so that the check of its limits
//! refuses it and names them.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};

/// A whole number that is not checked yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WholeNumber(pub(crate) i64);

impl Serialize for WholeNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

impl<'de> Deserialize<'de> for WholeNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WholeNumberVisitor;

        impl Visitor<'_> for WholeNumberVisitor {
            type Value = WholeNumber;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<WholeNumber, E> {
                Ok(WholeNumber(number))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<WholeNumber, E> {
                Ok(WholeNumber(i64::try_from(number).unwrap_or(i64::MAX)))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<WholeNumber, E> {
                if number.fract() != 0.0 {
                    return Err(E::invalid_type(Unexpected::Float(number), &self));
                }
                #[expect(clippy::cast_possible_truncation, reason = "whole; the cast saturates")]
                Ok(WholeNumber(number as i64))
            }
        }

        deserializer.deserialize_any(WholeNumberVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_may_have_a_point_or_an_exponent() {
        for (json, want) in [
            ("5", Some(5)),
            ("-5", Some(-5)),
            ("5.0", Some(5)),
            ("5e2", Some(500)),
            ("0.0", Some(0)),
            ("18446744073709551615", Some(i64::MAX)),
            ("1e300", Some(i64::MAX)),
            ("-1e300", Some(i64::MIN)),
            ("5.5", None),
            ("1e-3", None),
            ("\"5\"", None),
            ("true", None),
            ("null", None),
        ] {
            let number = serde_json::from_str::<WholeNumber>(json).ok();
            assert_eq!(number.map(|number| number.0), want, "{json}");
        }
    }
}
