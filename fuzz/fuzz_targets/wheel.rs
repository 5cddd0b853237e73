//! Any bytes at all, read as operations on a wheel, which must do what the model does.
//!
//! In: bytes of libFuzzer: a start time, then ten bytes for each operation. Out: a panic at the
//! first difference.
//! Not here: what is right (`punctual_wheel::model`), which the property test uses as well.
//!
//! Stable Rust suffices: `cargo fuzz run wheel --sanitizer none` with `RUSTC_BOOTSTRAP=1`. The wheel
//! has no unsafe code for a sanitizer to look at.

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
