//! Quotas and leases over a store, with several brokers.

use meridian_metadata::{MemoryStore, SharedStore};
use meridian_policy::quota::{Layer, Limit, Place, Quota};
use meridian_quotas::usage::{HOUR_MS, Usage};
use meridian_quotas::{LeaseConfig, Leases, Need, QuotaBook};
use meridian_types::TopicName;
use std::sync::Arc;

fn store() -> SharedStore {
    Arc::new(MemoryStore::default())
}

fn quota(limit: Limit, value: u64) -> Quota {
    Quota([(limit, value)].into())
}

#[tokio::test]
async fn a_change_is_in_force_here_when_it_is_answered_and_there_soon() {
    let store = store();
    let (here, there) = (QuotaBook::open(store.clone()).await.unwrap(), QuotaBook::open(store).await.unwrap());
    let place = Place::Tenant("a".into());
    let topic = TopicName::parse("persistent://a/n/t").unwrap();
    here.set(&place, Layer::Operator, &quota(Limit::Topics, 5)).await.unwrap();
    here.set(&place, Layer::Tenant, &quota(Limit::Topics, 50)).await.unwrap();
    let bound = here.bound_of(Limit::Topics, &topic).unwrap();
    assert_eq!((bound.value, bound.layer, &bound.place), (5, Layer::Operator, &place));
    let mut changes = there.changes();
    while there.bound_of(Limit::Topics, &topic) != Some(bound.clone()) {
        changes.changed().await.unwrap();
    }
    here.forget(&place).await.unwrap();
    assert!(here.get(&place).is_none() && here.is_empty());
    while there.get(&place).is_some() {
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn brokers_that_change_one_place_at_once_lose_nothing() {
    let store = store();
    let book = QuotaBook::open(store).await.unwrap();
    let place = Place::Cluster;
    let (one, other) = (quota(Limit::Topics, 5), quota(Limit::Producers, 6));
    let (first, second) =
        tokio::join!(book.set(&place, Layer::Operator, &one), book.set(&place, Layer::Tenant, &other),);
    first.unwrap();
    second.unwrap();
    let quotas = book.get(&place).unwrap();
    assert_eq!((&quotas.operator, &quotas.tenant), (&one, &other));
}

fn need(demand: u64, in_use: u64) -> Need {
    Need { limit: Limit::PublishBytesPerSecond, place: Place::Tenant("a".into()), total: 1_000, demand, in_use }
}

#[tokio::test]
async fn three_brokers_never_hold_more_than_the_limit() {
    let store = store();
    let broker = |name: &str| Leases::new(store.clone(), LeaseConfig { holder: name.to_owned(), ttl_ms: 10_000 });
    let brokers = [broker("a"), broker("b"), broker("c")];
    let mut now_ms = 1_000;
    for round in 0..20 {
        let mut sum = 0;
        for (at, leases) in brokers.iter().enumerate() {
            now_ms += 100;
            leases.renew(&need(300 * (at as u64 + 1), 0), now_ms).await.unwrap();
        }
        for leases in &brokers {
            sum += leases.allowed(&need(0, 0), now_ms);
        }
        assert!(sum <= 1_000, "{sum}");
        assert!(round < 3 || sum >= 990, "{sum}");
    }
    // One crashes: nobody gets its part before it has ended.
    let [first, second, crashed] = brokers;
    let part = crashed.allowed(&need(0, 0), now_ms);
    drop(crashed);
    for _ in 0..5 {
        now_ms += 1_000;
        let sum =
            first.renew(&need(1_000, 0), now_ms).await.unwrap() + second.renew(&need(1_000, 0), now_ms).await.unwrap();
        assert!(sum + part <= 1_000, "{sum} {part}");
    }
    now_ms += 20_000;
    for _ in 0..3 {
        now_ms += 100;
        first.renew(&need(1_000, 0), now_ms).await.unwrap();
        second.renew(&need(1_000, 0), now_ms).await.unwrap();
    }
    assert_eq!(first.allowed(&need(0, 0), now_ms) + second.allowed(&need(0, 0), now_ms), 1_000);
    // What is not needed any more is given back at once.
    second.retain(&[]).await.unwrap();
    assert_eq!(first.renew(&need(1_000, 0), now_ms + 1).await.unwrap(), 1_000);
    // A broker that can't renew stops at a fair share, before others may take it.
    assert_eq!(first.allowed(&need(0, 0), now_ms + 9_002), 1_000);
    assert_eq!(second.allowed(&need(0, 7), now_ms), 7);
}

#[tokio::test]
async fn many_leases_are_renewed_together() {
    let store = store();
    let leases = Leases::new(store.clone(), LeaseConfig { holder: "a".to_owned(), ttl_ms: 10_000 });
    let other = Leases::new(store, LeaseConfig { holder: "b".to_owned(), ttl_ms: 10_000 });
    let needs: Vec<Need> =
        (0..100).map(|number| Need { place: Place::Tenant(format!("t{number}")), ..need(10, 0) }).collect();
    assert!(needs.iter().all(|need| !leases.knows(need) && leases.allowed(need, 1_000) == 0));
    assert!(leases.renew_all(&needs, 1_000).await.is_empty());
    assert!(needs.iter().all(|need| leases.knows(need) && leases.allowed(need, 1_000) == 1_000));
    assert!(other.renew_all(&needs, 1_000).await.is_empty());
    assert!(needs.iter().all(|need| other.knows(need) && other.allowed(need, 1_000) == 0), "nothing is left yet");
    // What is kept is kept, the rest is given back.
    leases.retain(&needs[..50]).await.unwrap();
    assert!(needs.iter().enumerate().all(|(at, need)| leases.knows(need) == (at < 50)));
    assert!(other.renew_all(&needs, 1_001).await.is_empty());
    assert!(needs.iter().enumerate().all(|(at, need)| (other.allowed(need, 1_001) == 1_000) == (at >= 50)));
}

#[tokio::test]
async fn usage_is_summed_over_brokers_and_hours() {
    let book = QuotaBook::open(store()).await.unwrap();
    let usage = |messages_in| Usage { messages_in, stored_bytes_max: 5, ..Usage::default() };
    for (hour, broker, messages) in [(10, "a", 1), (10, "b", 2), (11, "a", 4), (12, "a", 8)] {
        book.put_usage("t", hour, broker, &usage(messages)).await.unwrap();
    }
    book.put_usage("tt", 10, "a", &usage(100)).await.unwrap();
    let hours = book.usage("t", 10 * HOUR_MS, 12 * HOUR_MS).await.unwrap();
    let messages: Vec<_> =
        hours.iter().map(|(hour, usage)| (*hour, usage.messages_in, usage.stored_bytes_max)).collect();
    assert_eq!(messages, [(10, 3, 10), (11, 4, 5)]);
    assert_eq!(book.written_usage("t", 12, "a").await.unwrap().messages_in, 8);
    assert_eq!(book.trim_usage(12).await.unwrap(), 4);
    assert_eq!(book.usage("t", 0, u64::MAX).await.unwrap().len(), 1);
}
