//! Runs random operations on a wheel and on its model, and panics at the first difference.
//!
//! The input is a start time and ten bytes for each operation. The model is
//! `punctual_wheel::model`, which the property test uses as well. The wheel has no unsafe code, so
//! no sanitizer is needed: `RUSTC_BOOTSTRAP=1 cargo fuzz run wheel --sanitizer none`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use punctual_wheel::model::{Operation, check};

fuzz_target!(|bytes: &[u8]| {
    let Some((start, rest)) = bytes.split_first_chunk::<8>() else {
        return;
    };
    let (operations, _) = rest.as_chunks::<10>();
    check(
        u64::from_le_bytes(*start),
        operations.iter().map(|[kind, magnitude, amount @ ..]| {
            Operation::from_numbers(*kind, *magnitude, u64::from_le_bytes(*amount))
        }),
    );
});
