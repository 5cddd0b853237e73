//! A measured share as a number. Answers over HTTP and gRPC and the document of a notice show the
//! same one.

/// Returns a share with three decimals; zero without attempts.
pub(crate) fn share(failed: u64, total: u64) -> f64 {
    let thousandths = u128::from(failed) * 1000 + u128::from(total) / 2;
    let thousandths = thousandths.checked_div(u128::from(total)).unwrap_or(0);
    f64::from(u32::try_from(thousandths).unwrap_or(1000)) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_three_decimals() {
        for (failed, total, want) in
            [(0, 0, 0.0), (0, 7, 0.0), (1, 3, 0.333), (2, 3, 0.667), (31, 1000, 0.031), (5, 5, 1.0)]
        {
            assert!((share(failed, total) - want).abs() < 1e-12, "{failed} of {total}");
        }
        assert!((share(u64::MAX, u64::MAX) - 1.0).abs() < 1e-12);
    }
}
