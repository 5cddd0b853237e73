//! Certificates for servers on loopback.

/// Makes a certificate of `localhost` and `127.0.0.1` that is its own authority. Returns it and its
/// key, in PEM.
pub fn make_certificate() -> (String, String) {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate can be made");
    (made.cert.pem(), made.signing_key.serialize_pem())
}
