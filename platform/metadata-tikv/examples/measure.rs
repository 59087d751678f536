//! Measures calls of the store: `measure tikv://host:port/prefix [seconds]`; without a URL on a server of its own.
//!
//! Prints calls per second and the times of the middle and of the slowest hundredth, for one caller after another and
//! for many at once.

use meridian_metadata::{Condition, MetadataError, SharedStore};
use meridian_metadata_tikv::{TikvConfig, TikvStore};
use meridian_mini_tikv::{MiniTikv, TikvOptions};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
enum Call {
    Get,
    Put,
    CompareAndSet,
    Allocate,
}

async fn one(store: &SharedStore, call: Call, caller: usize, round: u64) -> Result<(), MetadataError> {
    let key = format!("measure/{caller}/{}", round % 100);
    match call {
        Call::Get => store.get(&key).await.map(drop),
        Call::Put => store.put(&key, vec![7; 200], Condition::Any).await.map(drop),
        Call::CompareAndSet => {
            let condition = store.get(&key).await?.map_or(Condition::Absent, |entry| Condition::Is(entry.version));
            store.put(&key, vec![7; 200], condition).await.map(drop)
        }
        Call::Allocate => store.allocate("measure", 1).await.map(drop),
    }
}

async fn measure(store: &SharedStore, call: Call, callers: usize, lasts: Duration) -> Result<(), MetadataError> {
    let started = Instant::now();
    let mut running = Vec::new();
    for caller in 0..callers {
        let store = store.clone();
        running.push(tokio::spawn(async move {
            let mut times_us = Vec::new();
            while started.elapsed() < lasts {
                let begun = Instant::now();
                one(&store, call, caller, times_us.len() as u64).await?;
                times_us.push(begun.elapsed().as_micros() as u64);
            }
            Ok::<_, MetadataError>(times_us)
        }));
    }
    let mut times_us = Vec::new();
    for caller in running {
        times_us.extend(caller.await.unwrap_or_else(|_| Err(MetadataError::Unavailable("a caller ended".into())))?);
    }
    times_us.sort_unstable();
    let at =
        |share: f64| times_us.get((times_us.len() as f64 * share) as usize).copied().unwrap_or_default() as f64 / 1e3;
    let rate = times_us.len() as f64 / started.elapsed().as_secs_f64();
    println!("{call:?} by {callers}: {rate:.0}/s, p50 {:.1} ms, p99 {:.1} ms", at(0.5), at(0.99));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next();
    let lasts = Duration::from_secs(arguments.next().map_or(Ok(3), |seconds| seconds.parse())?);
    let server = if url.is_none() { Some(MiniTikv::start(&TikvOptions::default())?) } else { None };
    let config = match (&url, &server) {
        (Some(url), _) => TikvConfig::from_url(url)?,
        (None, Some(server)) => TikvConfig::new(vec![server.address().to_string()], "measure/"),
        (None, None) => return Err("no store".into()),
    };
    let tikv = TikvStore::connect(config).await?;
    let store: SharedStore = tikv.clone();
    for callers in [1, 32] {
        for call in [Call::Put, Call::Get, Call::CompareAndSet, Call::Allocate] {
            measure(&store, call, callers, lasts).await?;
        }
    }
    println!("{:?}", tikv.stats());
    Ok(())
}
