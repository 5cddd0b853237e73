//! The conformance suite over the embedded store: once with its usual budgets, once with tiny ones.

mod subject;

mod usual {
    punctual_store::conformance!(crate::subject::Dir::usual());
    punctual_store::conformance_durable!(crate::subject::Dir::usual());
}

mod tiny {
    punctual_store::conformance!(crate::subject::Dir::tiny());
    punctual_store::conformance_durable!(crate::subject::Dir::tiny());
}
