//! No clause is written and then forgotten: each one is in the list that the macros expand.

const SUITE: &str = include_str!("../src/conformance.rs");

const ROOMS: [&str; 11] = [
    include_str!("../src/conformance/durable.rs"),
    include_str!("../src/conformance/ending.rs"),
    include_str!("../src/conformance/filing.rs"),
    include_str!("../src/conformance/leases.rs"),
    include_str!("../src/conformance/listing.rs"),
    include_str!("../src/conformance/model.rs"),
    include_str!("../src/conformance/order.rs"),
    include_str!("../src/conformance/ownership.rs"),
    include_str!("../src/conformance/retention.rs"),
    include_str!("../src/conformance/membership.rs"),
    include_str!("../src/conformance/shape.rs"),
];

#[test]
fn every_clause_is_run() {
    let clauses: Vec<_> = ROOMS
        .iter()
        .flat_map(|room| room.split("\npub async fn ").skip(1))
        .filter_map(|after| after.split('<').next())
        // Not a clause but what one is made of: it takes a seed and a length.
        .filter(|name| *name != "same_as_memory")
        .collect();
    assert!(clauses.len() > 80, "the sources are read");
    for clause in clauses {
        let listed = [",", ";"].iter().any(|end| {
            let line = format!(" {clause}{end}\n");
            SUITE.contains(&line)
        });
        assert!(listed, "{clause} is in no list of `conformance.rs`");
    }
}
