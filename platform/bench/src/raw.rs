//! The limits of the machine: what synced writing and a loopback round trip cost with no server in between.
//!
//! Role: `pwrite` and `fdatasync` in turn over a file that is already written (so that no sync has to store a new size or
//! new blocks, like a journal that uses its files again), at several group sizes; a small message to and fro over TCP.
//! Failure: [`BenchError`].
//! Must never know: what the limits are compared with.

use crate::BenchError;
use crate::record::{Recorder, put_percentiles};
use clap::Args;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const FILL_BYTES: usize = 1 << 20;
const PING_BYTES: usize = 64;
const ROUND_TRIPS: u32 = 20_000;
const ROUND_TRIPS_WARM_UP: u32 = 2_000;
const FILE_NAME: &str = "meridian-bench-raw";

/// What to measure.
#[derive(Debug, Args)]
pub struct RawArgs {
    /// A folder on the disk in question.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Size of the file that is written over.
    #[arg(long, default_value_t = 256, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    file_mib: u32,
    /// Bytes between two syncs.
    #[arg(long, value_delimiter = ',', default_values_t = [1_024, 4_096, 16_384, 65_536, 131_072, 262_144, 1_048_576],
          value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    groups: Vec<u32>,
    /// Seconds for each group size.
    #[arg(long, default_value_t = 2, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// Measures and gives each line to `print`.
///
/// # Errors
/// The disk or the loopback fails.
pub fn run(args: &RawArgs, mut print: impl FnMut(Map<String, Value>)) -> Result<(), BenchError> {
    let path = args.dir.join(FILE_NAME);
    let measured = disk(&path, args, &mut print);
    let removed = std::fs::remove_file(&path).map_err(BenchError::io(path.display().to_string()));
    measured.and(removed)?;
    print(loopback().map_err(BenchError::io("the loopback"))?);
    Ok(())
}

fn disk(path: &Path, args: &RawArgs, print: &mut impl FnMut(Map<String, Value>)) -> Result<(), BenchError> {
    let failed = || BenchError::io(path.display().to_string());
    let file_bytes = u64::from(args.file_mib) << 20;
    let file = zero_filled(path, file_bytes).map_err(failed())?;
    for &group_bytes in &args.groups {
        let lasting = Duration::from_secs(args.seconds);
        print(synced_writes(&file, file_bytes, u64::from(group_bytes), lasting).map_err(failed())?);
    }
    Ok(())
}

fn zero_filled(path: &Path, bytes: u64) -> std::io::Result<File> {
    let mut file = File::create(path)?;
    let zeros = vec![0; FILL_BYTES];
    for _ in 0..bytes / FILL_BYTES as u64 {
        file.write_all(&zeros)?;
    }
    file.sync_all()?;
    Ok(file)
}

fn synced_writes(
    file: &File,
    file_bytes: u64,
    group_bytes: u64,
    lasting: Duration,
) -> std::io::Result<Map<String, Value>> {
    let group_bytes = group_bytes.min(file_bytes);
    let group = vec![0x5a; group_bytes as usize];
    let places = file_bytes / group_bytes;
    let recorder = Recorder::default();
    let start = Instant::now();
    while start.elapsed() < lasting {
        let began = Instant::now();
        file.write_all_at(&group, recorder.count() % places * group_bytes)?;
        file.sync_data()?;
        recorder.record(began.elapsed(), 1);
    }
    let groups_per_s = recorder.count() as f64 / start.elapsed().as_secs_f64();
    let mut report = Map::new();
    report.insert("raw".into(), json!("pwrite+fdatasync"));
    report.insert("group_bytes".into(), json!(group_bytes));
    report.insert("syncs_per_s".into(), json!(groups_per_s.round()));
    report.insert("mb_per_s".into(), json!((groups_per_s * group_bytes as f64 / 1e4).round() / 1e2));
    put_percentiles("sync", &recorder.take(), &mut report);
    Ok(report)
}

fn echo(listener: &TcpListener) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut ping = [0; PING_BYTES];
    while stream.read_exact(&mut ping).is_ok() {
        stream.write_all(&ping)?;
    }
    Ok(())
}

fn loopback() -> std::io::Result<Map<String, Value>> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let echoing = std::thread::spawn(move || echo(&listener));
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let recorder = Recorder::default();
    let mut ping = [7; PING_BYTES];
    for round in 0..ROUND_TRIPS_WARM_UP + ROUND_TRIPS {
        let began = Instant::now();
        stream.write_all(&ping)?;
        stream.read_exact(&mut ping)?;
        if round >= ROUND_TRIPS_WARM_UP {
            recorder.record(began.elapsed(), 1);
        }
    }
    drop(stream);
    echoing.join().map_err(|_| std::io::Error::other("the echo ended"))??;
    let mut report = Map::from_iter([("raw".to_owned(), json!("loopback"))]);
    report.insert("bytes".into(), json!(PING_BYTES));
    put_percentiles("round_trip", &recorder.take(), &mut report);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_stay_inside_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = zero_filled(&path, 1 << 20).unwrap();
        let report = synced_writes(&file, 1 << 20, 300_000, Duration::from_millis(30)).unwrap();
        assert!(report["syncs_per_s"].as_f64().unwrap() > 0.0);
        assert!(report["sync_p50_ms"].as_f64().unwrap() > 0.0);
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    }

    #[test]
    fn a_round_trip_takes_time() {
        assert!(loopback().unwrap()["round_trip_p50_ms"].as_f64().unwrap() > 0.0);
    }
}
