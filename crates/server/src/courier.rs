//! Couriers: how deliveries travel. One file per way.

mod http;

pub(crate) use http::HttpCourier;
