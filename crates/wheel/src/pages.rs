//! An array that grows by pages: values never move, and at most one page is partly filled.
//!
//! A `Vec` would copy everything when it grows, which is a pause, and allocate up to twice the
//! memory. `timers` and `slot` keep their values here.

/// An array of `T` in pages of `N`.
#[derive(Debug)]
pub(crate) struct Pages<T, const N: usize> {
    pages: Vec<Box<[T; N]>>,
    len: u32,
}

impl<T: Copy, const N: usize> Pages<T, N> {
    pub(crate) const fn new() -> Self {
        const { assert!(N.is_power_of_two(), "an index is split by shift and mask") };
        Pages { pages: Vec::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        let at = self.len as usize;
        if at.is_multiple_of(N) {
            self.pages.push(new_page(value));
        } else {
            self.pages[at / N][at % N] = value;
        }
        self.len += 1;
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> &T {
        let at = index as usize;
        &self.pages[at / N][at % N]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> &mut T {
        let at = index as usize;
        &mut self.pages[at / N][at % N]
    }

    /// Like `get_mut`, for an index that may be out of range. An index beyond the end but within
    /// the last page returns a copy of the first value of that page.
    #[inline]
    pub(crate) fn get_checked_mut(&mut self, index: u32) -> Option<&mut T> {
        let at = index as usize;
        Some(&mut self.pages.get_mut(at / N)?[at % N])
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.pages.len() * size_of::<[T; N]>() + self.pages.capacity() * size_of::<Box<[T; N]>>()
    }
}

/// Makes a page on the heap, because it may be too large for the stack.
#[cold]
fn new_page<T: Copy, const N: usize>(value: T) -> Box<[T; N]> {
    match vec![value; N].into_boxed_slice().try_into() {
        Ok(page) => page,
        Err(_) => unreachable!("a vector of N values has N values"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_can_be_read_across_page_boundaries() {
        let mut pages: Pages<u32, 4> = Pages::new();
        for value in 0..9 {
            pages.push(value);
        }
        *pages.get_mut(4) = 40;
        let values: Vec<u32> = (0..pages.len()).map(|index| *pages.get(index)).collect();
        assert_eq!(values, [0, 1, 2, 3, 40, 5, 6, 7, 8]);
    }
}
