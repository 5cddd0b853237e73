//! The conformance suite for the embedded store: once with its default limits, once with tiny ones.

mod usual {
    punctual_store::conformance!(crate::store_dir::StoreDir::usual());
    punctual_store::conformance_durable!(crate::store_dir::StoreDir::usual());
}

mod tiny {
    punctual_store::conformance!(crate::store_dir::StoreDir::tiny());
    punctual_store::conformance_durable!(crate::store_dir::StoreDir::tiny());
}
