//! Connections to real servers: credentials, TLS, timeouts, and servers that go away.

use std::sync::Arc;
use std::time::Duration;

use punctual_sql::mysql_async::prelude::Queryable;
use punctual_sql::{Reconnecting, SqlError, SqlOptions, mysql, postgres};
use punctual_test_support::postgres::{GUARDED_PASSWORD, GUARDED_ROLE};
use punctual_test_support::{MariadbServer, PostgresServer};

const SHORT: Duration = Duration::from_millis(300);

fn postgres_at(url: &str) -> SqlOptions {
    SqlOptions::from_url(url).expect("a valid URL")
}

async fn one(connection: &postgres::PostgresClient) -> Result<i32, SqlError> {
    connection.within(connection.query_one("SELECT 1", &[])).await.map(|row| row.get(0))
}

#[tokio::test]
async fn a_statement_runs_on_postgres_and_on_mariadb() {
    let url = punctual_test_support::postgres::shared_database();
    let connection = postgres::connect(&postgres_at(&url)).await.unwrap();
    assert_eq!(one(&connection).await.unwrap(), 1);
    let refused = connection.within(connection.query("SELECT * FROM nothing", &[])).await;
    assert_eq!(refused.unwrap_err().code(), Some("42P01"));

    let url = punctual_test_support::mariadb::shared_database();
    let options = SqlOptions::from_url(&url).unwrap();
    let mut connection = mysql::connect(&options).await.unwrap();
    let value = mysql::within(SHORT, connection.query_first::<u32, _>("SELECT 1")).await;
    assert_eq!(value.unwrap(), Some(1));
    let refused = mysql::within(SHORT, connection.query_drop("SELECT * FROM nothing")).await;
    assert_eq!(refused.unwrap_err().code(), Some("1146"));
}

#[tokio::test]
async fn wrong_credentials_are_refused_without_showing_the_secret() {
    let server = PostgresServer::start(&[]);
    server.make_guarded_role();
    let url = |password: &str| {
        let place = format!("127.0.0.1:{}/postgres", server.port);
        format!("postgres://{GUARDED_ROLE}:{password}@{place}")
    };
    let connected = postgres::connect(&postgres_at(&url(GUARDED_PASSWORD))).await;
    assert_eq!(one(&connected.unwrap()).await.unwrap(), 1);
    let error = postgres::connect(&postgres_at(&url("wrong-one"))).await.unwrap_err();
    assert!(matches!(error, SqlError::Refused { .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("wrong-one"));
    let missing = postgres::connect(&postgres_at(&server.url("nowhere"))).await.unwrap_err();
    assert!(missing.to_string().contains("nowhere"), "{missing}");

    let url = punctual_test_support::mariadb::shared_database();
    let wrong = url.replace("hush-hush", "wrong-one");
    let error = mysql::connect(&SqlOptions::from_url(&wrong).unwrap()).await.unwrap_err();
    assert!(matches!(error, SqlError::Refused { .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("wrong-one"));
}

#[tokio::test]
async fn tls_needs_a_certificate_of_a_trusted_authority_for_that_host() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let server =
        PostgresServer::start_with_tls(&made.cert.pem(), &made.signing_key.serialize_pem());
    let url = format!("{}?sslmode=verify-full", server.url("postgres"));
    let trusting = |pem: String| postgres_at(&url).with_authority(pem.into_bytes());
    let connection = postgres::connect(&trusting(made.cert.pem())).await.unwrap();
    let tls = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let row = connection.within(connection.query_one(tls, &[])).await.unwrap();
    assert!(row.get::<_, bool>(0));
    for options in [trusting(other.cert.pem()), postgres_at(&url)] {
        let error = postgres::connect(&options).await.unwrap_err();
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    let error = postgres::connect(&trusting(String::new())).await.unwrap_err();
    assert!(matches!(error, SqlError::Options(_)), "{error}");
    // A server without TLS is refused, not used in the clear.
    let plain = punctual_test_support::postgres::shared_database();
    let options = postgres_at(&format!("{plain}?sslmode=require"));
    assert!(postgres::connect(&options).await.is_err());
}

#[tokio::test]
async fn tls_to_mariadb_needs_a_certificate_of_a_trusted_authority_for_that_host() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let elsewhere = rcgen::generate_simple_self_signed(["db.example".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let server = MariadbServer::start_with_tls(&certificate, &key);
    let url = format!("{}?sslmode=verify-full", server.database("tasks"));
    let options = SqlOptions::from_url(&url).unwrap();
    let trusting = |pem: String| options.clone().with_authority(pem.into_bytes());
    let mut connection = mysql::connect(&trusting(certificate)).await.unwrap();
    let cipher = "SHOW SESSION STATUS LIKE 'Ssl_cipher'";
    let (_, cipher): (String, String) = connection.query_first(cipher).await.unwrap().unwrap();
    assert!(!cipher.is_empty());
    for options in [trusting(other.cert.pem()), options.clone()] {
        let error = mysql::connect(&options).await.unwrap_err();
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    drop(server);
    let (certificate, key) = (elsewhere.cert.pem(), elsewhere.signing_key.serialize_pem());
    let server = MariadbServer::start_with_tls(&certificate, &key);
    let url = server.database("tasks");
    let options = SqlOptions::from_url(&url).unwrap().with_authority(certificate.into_bytes());
    let error = mysql::connect(&options).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    // A server without TLS is refused, not used in the clear.
    let plain = punctual_test_support::mariadb::shared_database();
    let options = SqlOptions::from_url(&format!("{plain}?sslmode=require")).unwrap();
    assert!(mysql::connect(&options).await.is_err());
}

#[tokio::test]
async fn a_server_that_hangs_costs_the_timeout_and_one_that_is_back_is_found_again() {
    let mut server = PostgresServer::start(&[]);
    let mut options = postgres_at(&server.url("postgres"));
    options.statement_timeout = SHORT;
    options.connect_timeout = SHORT;
    let kept = Reconnecting::default();
    let options = Arc::new(options);
    let connect = || {
        let options = Arc::clone(&options);
        async move { postgres::connect(&options).await }
    };
    let connection: Arc<postgres::PostgresClient> = kept.get(connect).await.unwrap();
    server.suspend();
    let error = one(&connection).await.unwrap_err();
    assert!(matches!(error, SqlError::Silent(_)), "{error}");
    kept.lost(&connection);
    assert!(kept.get(connect).await.is_err());
    server.resume();
    let connection = kept.get(connect).await.unwrap();
    assert_eq!(one(&connection).await.unwrap(), 1);
    server.kill();
    let error = one(&connection).await.unwrap_err();
    assert!(error.breaks_connection(), "{error}");
    kept.lost(&connection);
    assert!(kept.get(connect).await.is_err());
    server.start_again();
    let connection = kept.get(connect).await.unwrap();
    assert_eq!(one(&connection).await.unwrap(), 1);
}

#[tokio::test]
async fn of_several_servers_the_one_that_accepts_writes_is_used() {
    let mut primary = PostgresServer::start(&["fsync=off"]);
    let replica = primary.start_replica("standby", &["fsync=off"]);
    let url = |first: &PostgresServer, second: &PostgresServer| {
        let role = punctual_test_support::postgres::ROLE;
        format!("postgres://{role}@127.0.0.1:{},127.0.0.1:{}/postgres", first.port, second.port)
    };
    let connection = postgres::connect(&postgres_at(&url(&replica, &primary))).await.unwrap();
    assert!(connection.server().ends_with(&primary.port.to_string()));
    primary.kill();
    let both = postgres_at(&url(&primary, &replica));
    assert!(postgres::connect(&both).await.is_err());
    replica.promote();
    let connection = postgres::connect(&both).await.unwrap();
    assert!(connection.server().ends_with(&replica.port.to_string()));
}

#[tokio::test]
async fn a_mariadb_that_was_killed_is_found_again() {
    let mut server = MariadbServer::start(&[]);
    let url = server.database("tasks");
    let options = SqlOptions::from_url(&url).unwrap();
    let mut connection = mysql::connect(&options).await.unwrap();
    server.kill();
    let broken = mysql::within(SHORT, connection.query_drop("SELECT 1")).await.unwrap_err();
    assert!(broken.breaks_connection(), "{broken}");
    assert!(mysql::connect(&options).await.is_err());
    server.start_again();
    let mut connection = mysql::connect(&options).await.unwrap();
    mysql::within(SHORT, connection.query_drop("SELECT 1")).await.unwrap();
}
