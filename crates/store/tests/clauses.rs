//! Checks that every clause of the suite is in a list that the macros expand.

const SUITE: &str = include_str!("../src/conformance.rs");

const MODULES: [&str; 15] = [
    include_str!("../src/conformance/clauses/due_counts.rs"),
    include_str!("../src/conformance/clauses/durability.rs"),
    include_str!("../src/conformance/clauses/settlement.rs"),
    include_str!("../src/conformance/clauses/writes.rs"),
    include_str!("../src/conformance/clauses/leases.rs"),
    include_str!("../src/conformance/clauses/lists.rs"),
    include_str!("../src/conformance/clauses/fires.rs"),
    include_str!("../src/conformance/clauses/namespaces.rs"),
    include_str!("../src/conformance/model.rs"),
    include_str!("../src/conformance/clauses/order.rs"),
    include_str!("../src/conformance/clauses/ownership.rs"),
    include_str!("../src/conformance/clauses/retention.rs"),
    include_str!("../src/conformance/clauses/membership.rs"),
    include_str!("../src/conformance/clauses/redrive.rs"),
    include_str!("../src/conformance/clauses/values.rs"),
];

#[test]
fn every_clause_is_run() {
    let clauses: Vec<_> = MODULES
        .iter()
        .flat_map(|module| module.split("\npub async fn ").skip(1))
        .filter_map(|after| after.split('<').next())
        // Not a clause: it takes a seed and a length.
        .filter(|name| *name != "same_as_memory")
        .collect();
    assert!(clauses.len() > 80, "the files are read");
    for clause in clauses {
        let listed = [",", ";"].iter().any(|end| {
            let line = format!(" {clause}{end}\n");
            SUITE.contains(&line)
        });
        assert!(listed, "{clause} is in no list of `conformance.rs`");
    }
}
