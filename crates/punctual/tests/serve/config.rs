//! Settings from flags, environment, files and the configuration file.

use std::process::Command;

use punctual_test_support::{TestBroker, punctual_binary, refused_start};

use crate::access::call;

#[test]
fn flags_override_the_environment_and_the_environment_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("punctual.toml");
    let config = ["--config", file.to_str().unwrap()];
    std::fs::write(&file, "tokens = [\"shop=file\"]\n").unwrap();
    // A missing certificate stops each start, and the error has its path.
    let error_of = |flags: &[&str], variables: &[(&str, &str)]| {
        refused_start(&[&config[..], flags].concat(), variables)
    };
    let append = |line: &str| {
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{text}{line}\n")).unwrap();
    };
    append("tls_cert = \"/from/file\"\ntls_key = \"/key\"");
    let variable = [("PUNCTUAL_TLS_CERT", "/from/environment")];
    assert!(error_of(&[], &[]).contains("/from/file"));
    assert!(error_of(&[], &variable).contains("/from/environment"));
    assert!(error_of(&["--tls-cert", "/from/flag"], &variable).contains("/from/flag"));
    append("listn = 1");
    let error = error_of(&[], &[]);
    assert!(error.contains("unknown field `listn`") && error.contains("line 4"), "{error}");
    std::fs::remove_file(&file).unwrap();
    assert!(error_of(&[], &[]).contains("punctual.toml"));
}

#[test]
fn tokens_come_from_the_configuration_file_and_secrets_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let (file, secret) = (dir.path().join("punctual.toml"), dir.path().join("secret"));
    std::fs::write(&secret, "hush\n").unwrap();
    std::fs::write(&file, format!("tokens = [\"shop=@{}\"]\n", secret.display())).unwrap();
    let broker = TestBroker::start(&["--config", file.to_str().unwrap()]);
    assert_eq!(call(&broker, "PUT", "/v1/shop/tasks/a", "hush").0, 201);
    assert_eq!(call(&broker, "PUT", "/v1/shop/tasks/a", "other").0, 401);
}

#[test]
fn errors_and_help_texts_contain_no_secret() {
    for (flags, expected) in [
        (&["--token", "hush"][..], "NAMESPACE=SECRET"),
        (&["--token", "shop=hush hush"], "the secret of shop"),
        (&["--admin-token", "hush hush"], "admin_tokens"),
        (&["--signing-secret", "shop=whsec_hush"], "24 to 64 bytes"),
        (&["--signing-secret", "*=hush"], "whsec_"),
        (&["--tls-cert", "/no/such/cert"], "must be given together"),
        (&["--smtp-url", "smtps://ops:hush@mail.example.org"], "--smtp-credentials-file"),
        (&["--smtp-url", "smtp://mail.example.org"], "would not be encrypted"),
        (&["--smtp-url", "smtps://mail.example.org"], "smtp_from: must be given"),
        (&["--smtp-from", "ops@example.org"], "give --smtp-url too"),
    ] {
        let error = refused_start(flags, &[]);
        assert!(error.contains(expected) && !error.contains("hush"), "{error}");
    }
    let help = Command::new(punctual_binary())
        .args(["serve", "--help"])
        .env("PUNCTUAL_TOKENS", "shop=hush")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("PUNCTUAL_TOKENS") && !help.contains("hush"), "{help}");
}
