//! An allocator that counts the bytes that are allocated.
//!
//! It counts what was requested, including the spare capacity of growing arrays, but not the
//! overhead of the allocator, which differs from one allocator to the next. Resident memory is not
//! used: it leaves out pages that were allocated and not accessed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub struct CountingAllocator;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Bytes that are allocated now.
pub fn held() -> usize {
    HELD.load(Relaxed)
}

/// The most bytes that were allocated since `reset_peak`.
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

// SAFETY: every call is passed on to `System` unchanged; counting does not touch the memory. This
// is the only unsafe code, because Rust has no safe way to see allocations.
#[expect(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller guarantees the contract of `alloc`.
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
