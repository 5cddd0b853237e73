//! The set of namespaces in Redis: what a page costs, data of an earlier version, and damage.

use punctual_store::conformance::fixtures::{at, id, namespace, task};
use punctual_store::{Change, CountedNamespace, TaskStore};
use punctual_store_redis::keys::PartitionKeys;
use punctual_test_support::redis::RedisServer;

use crate::writer::{P, TestWriter, options};

/// Stores one task of each namespace.
async fn put(writer: &mut TestWriter, names: &[String]) {
    let tasks = names.iter().zip(1..).map(|(name, number)| {
        Change::Put(task(id(at(1), P, writer.epoch, number)).namespace(name).build())
    });
    writer.apply(tasks.collect()).await;
}

fn names_of(counted: &[CountedNamespace]) -> Vec<&str> {
    counted.iter().map(|counted| counted.name.as_str()).collect()
}

async fn listed(writer: &TestWriter, limit: usize) -> Vec<CountedNamespace> {
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = writer.store.namespaces(P, after.as_ref(), limit).await;
        let page = page.expect("Redis answers");
        listed.extend(page.items);
        after = page.next;
        if after.is_none() {
            return listed;
        }
    }
}

fn to_names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn a_page_takes_two_commands_and_reads_only_what_it_shows() {
    let server = RedisServer::start(&[]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    let names: Vec<String> = (0..2_000).map(|number| format!("n{number:04}")).collect();
    put(&mut writer, &names).await;
    writer.put(3_000).await;
    server.cli(&["CONFIG", "RESETSTAT"]);
    let after = namespace("n1000");
    let page = writer.store.namespaces(P, Some(&after), 10).await.expect("Redis answers");
    assert_eq!(names_of(&page.items), names[1001..1011]);
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls: Vec<&str> = stats
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split(",usec=").next())
        .filter(|call| !["config", "info", "hello", "client"].iter().any(|it| call.starts_with(it)))
        .collect();
    assert_eq!(calls.len(), 2, "{stats}");
    assert!(calls.contains(&"zrangebylex:calls=1") && calls.contains(&"hmget:calls=1"), "{stats}");
}

#[tokio::test]
async fn a_partition_that_an_earlier_version_wrote_is_listed_after_it_was_acquired() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    put(&mut writer, &to_names(&["b", "a", "c"])).await;
    let keys = PartitionKeys::new(&settings.cluster, P);
    server.cli(&["DEL", &keys.namespaces]);
    assert_eq!(listed(&writer, 9).await, []);
    let writer = TestWriter::open(settings, P).await;
    assert_eq!(names_of(&listed(&writer, 9).await), ["a", "b", "c"]);
    assert_eq!(server.cli(&["ZCARD", &keys.namespaces]).trim(), "3");
}

#[tokio::test]
async fn a_damaged_name_or_count_hides_only_its_namespace() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    put(&mut writer, &to_names(&["a", "b", "c", "d"])).await;
    let keys = PartitionKeys::new(&settings.cluster, P);
    // More in a row than a page has.
    for name in ["a b", "a c", "a d", "d e"] {
        server.cli(&["ZADD", &keys.namespaces, "0", name]);
    }
    let overwrite = "redis.call('HSET', KEYS[1], 'c\\0s', 'x')";
    server.cli(&["EVAL", overwrite, "1", &keys.counts]);
    for limit in [1, 2, 3, 9] {
        assert_eq!(names_of(&listed(&writer, limit).await), ["a", "b", "d"], "by {limit}");
    }
    assert_eq!(writer.store.damaged_values(), 5);
    server.cli(&["DEL", &keys.namespaces]);
    server.cli(&["SET", &keys.namespaces, "x"]);
    let error = writer.store.namespaces(P, None, 9).await.expect_err("it is no set");
    assert!(error.to_string().contains(&keys.namespaces), "{error}");
    // Tasks are stored all the same.
    put(&mut writer, &to_names(&["e"])).await;
    assert_eq!(writer.store.counts(P, &namespace("e")).await.expect("Redis answers").scheduled, 1);
}
