//! Bytes: an allocator that counts what is held.
//!
//! In: every allocation of the process. Out: bytes held now, and the most ever held.
//! Invariant: counts what was asked for, slack of growing arrays included; not the allocator's own
//! overhead, which differs from one allocator to the next.
//! Not here: resident memory, which would leave out pages that were asked for and not touched.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Bytes held now.
pub fn held() -> usize {
    HELD.load(Relaxed)
}

/// The most bytes held since `reset_peak`.
pub fn peak() -> usize {
    PEAK.load(Relaxed)
}

pub fn reset_peak() {
    PEAK.store(held(), Relaxed);
}

/// Load and store rather than one atomic addition: the bench has one thread, and an atomic addition
/// would slow down those contenders that allocate for each timer.
fn count(taken: usize, given_back: usize) {
    let held = HELD.load(Relaxed) + taken - given_back;
    HELD.store(held, Relaxed);
    if held > PEAK.load(Relaxed) {
        PEAK.store(held, Relaxed);
    }
}

// SAFETY: every call is passed on to `System` unchanged; counting does not touch the memory. This is
// the only unsafe code, because Rust has no safe way to see allocations.
#[expect(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
