//! Reports that the hub gathers for owners while it holds its lock.

use punctual_engine::{Report, Reports};

/// Reports to owners, gathered under the lock and sent after it is released.
#[derive(Debug, Default)]
pub(super) struct ReportBatch(Vec<(Reports, Vec<Report>)>);

impl ReportBatch {
    pub(super) fn push(&mut self, reports: &Reports, report: Report) {
        match self.0.iter_mut().find(|(to, _)| to.same_as(reports)) {
            Some((_, gathered)) => gathered.push(report),
            None => self.0.push((reports.clone(), vec![report])),
        }
    }

    pub(super) fn send(self) {
        for (reports, gathered) in self.0 {
            reports.send(gathered);
        }
    }
}
