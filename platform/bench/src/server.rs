//! What a server process spends, from the outside.
//!
//! Role: CPU time, resident memory and written bytes from `/proc`, journal syncs from `/metrics`.
//! Failure: a figure that cannot be had is left out, except those of a process that was named: then [`BenchError`].
//! Must never know: a server's insides.

use crate::BenchError;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Ticks per second of `/proc/PID/stat`: a constant of the kernel's interface.
const TICKS_PER_S: f64 = 100.0;
/// Sync groups of all journals; Pulsar's name.
const SYNCS: &str = "bookie_journal_JOURNAL_SYNC_count";
const METRICS_DEADLINE: Duration = Duration::from_secs(10);
const MAX_METRICS_BYTES: u64 = 64 << 20;

/// Where to look.
#[derive(Debug, Clone, Default)]
pub struct Server {
    /// Its processes.
    pub pids: Vec<u32>,
    /// `HOST:PORT` of the metrics endpoint.
    pub web: Option<String>,
    /// A token for the metrics endpoint.
    pub token: Option<String>,
}

/// What was spent up to a moment.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    at: Instant,
    process: Option<Process>,
    syncs: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Process {
    cpu_s: f64,
    resident_bytes: u64,
    written_bytes: u64,
}

impl Server {
    /// `HOST:PORT` of `http://HOST:PORT` or `HOST:PORT`.
    ///
    /// # Errors
    /// [`BenchError::Address`].
    pub fn web_address(url: &str) -> Result<String, BenchError> {
        let rest = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
        match rest.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(rest.to_owned()),
            _ => Err(BenchError::Address(url.to_owned(), "http://HOST:PORT")),
        }
    }

    /// Reads everything now.
    ///
    /// # Errors
    /// A named process is not there or not readable.
    pub async fn sample(&self) -> Result<Sample, BenchError> {
        let syncs = match &self.web {
            None => None,
            Some(web) => self.metrics(web).await.and_then(|text| sum_of(&text, SYNCS)),
        };
        let mut sum = Process::default();
        for pid in &self.pids {
            let one = process(*pid)?;
            sum.cpu_s += one.cpu_s;
            sum.resident_bytes += one.resident_bytes;
            sum.written_bytes += one.written_bytes;
        }
        Ok(Sample { at: Instant::now(), process: (!self.pids.is_empty()).then_some(sum), syncs })
    }

    async fn metrics(&self, web: &str) -> Option<String> {
        for path in ["/metrics", "/metrics/"] {
            let fetched = tokio::time::timeout(METRICS_DEADLINE, get(web, path, self.token.as_deref())).await;
            if let Ok(Ok(Some(text))) = fetched {
                return Some(text);
            }
        }
        None
    }
}

/// The body of a 200, else nothing.
async fn get(web: &str, path: &str, token: Option<&str>) -> std::io::Result<Option<String>> {
    let mut stream = TcpStream::connect(web).await?;
    let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    // HTTP/1.0: the body ends with the connection and comes in one piece.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {web}\r\n{bearer}\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.take(MAX_METRICS_BYTES).read_to_string(&mut answer).await?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return Ok(None) };
    let found = head.split_whitespace().nth(1) == Some("200");
    Ok(found.then(|| body.to_owned()))
}

/// The sum of a metric over its labels, without what a `success="false"` counts.
fn sum_of(text: &str, name: &str) -> Option<f64> {
    let mut sum = None;
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' '])) else { continue };
        let (labels, value) = rest.rsplit_once('}').unwrap_or(("", rest));
        let value = value.split_whitespace().next().and_then(|value| value.parse::<f64>().ok());
        if let Some(value) = value.filter(|_| !labels.contains("success=\"false\"")) {
            sum = Some(sum.unwrap_or(0.0) + value);
        }
    }
    sum
}

fn process(pid: u32) -> Result<Process, BenchError> {
    let read = |file: &str| {
        let path = format!("/proc/{pid}/{file}");
        std::fs::read_to_string(&path).map_err(BenchError::io(path))
    };
    let odd = |file: &str| BenchError::Wrong(format!("/proc/{pid}/{file} is not of the known form"));
    let cpu_s = cpu_of(&read("stat")?).ok_or_else(|| odd("stat"))?;
    let resident_bytes = field_of(&read("status")?, "VmRSS:").ok_or_else(|| odd("status"))? * 1024;
    let written_bytes = field_of(&read("io")?, "write_bytes:").ok_or_else(|| odd("io"))?;
    Ok(Process { cpu_s, resident_bytes, written_bytes })
}

/// User and system time, fields 14 and 15; the second field may hold spaces and brackets.
fn cpu_of(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system) = (fields.next()?.parse::<f64>().ok()?, fields.next()?.parse::<f64>().ok()?);
    Some((user + system) / TICKS_PER_S)
}

fn field_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn rounded(value: f64) -> Value {
    json!((value * 1e3).round() / 1e3)
}

/// What was spent between two samples for `messages` messages in `entries` entries.
pub fn put_spent(from: &Sample, to: &Sample, messages: u64, entries: u64, report: &mut Map<String, Value>) {
    let wall_s = to.at.duration_since(from.at).as_secs_f64();
    report.insert("messages".into(), json!(messages));
    report.insert("wall_s".into(), rounded(wall_s));
    report.insert("msg_per_s".into(), json!((messages as f64 / wall_s).round()));
    if let (Some(from), Some(to)) = (from.process, to.process) {
        report.insert("cpu_s_per_million".into(), rounded((to.cpu_s - from.cpu_s) * 1e6 / messages as f64));
        report.insert("rss_mib".into(), json!(to.resident_bytes >> 20));
        let written = to.written_bytes.saturating_sub(from.written_bytes);
        report.insert("disk_write_bytes_per_message".into(), rounded(written as f64 / messages as f64));
    }
    if let (Some(from), Some(to)) = (from.syncs, to.syncs) {
        let syncs = to - from;
        report.insert("syncs".into(), json!(syncs));
        if syncs > 0.0 {
            report.insert("entries_per_sync".into(), rounded(entries as f64 / syncs));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read() {
        let stat = "77 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9";
        assert_eq!(cpu_of(stat), Some(2.0));
        assert_eq!(cpu_of("77 (a"), None);
        assert_eq!(field_of("rchar: 1\nwrite_bytes: 4096\n", "write_bytes:"), Some(4096));
        let own = process(std::process::id()).unwrap();
        assert!(own.resident_bytes > 0);
        assert!(process(u32::MAX).is_err());
    }

    #[test]
    fn a_metric_is_summed_over_labels() {
        let text =
            "# TYPE a counter\na{b=\"1\"} 3\na{b=\"}\",success=\"true\"} 4 1700000000\na{success=\"false\"} 9\nab 5\n";
        assert_eq!(sum_of(text, "a"), Some(7.0));
        assert_eq!(sum_of("x 1.5e3\n", "x"), Some(1500.0));
        assert_eq!(sum_of(text, "b"), None);
    }

    #[test]
    fn web_addresses_are_read() {
        assert_eq!(Server::web_address("http://h:80/").unwrap(), "h:80");
        assert_eq!(Server::web_address("h:80").unwrap(), "h:80");
        assert!(Server::web_address("https://h").is_err());
    }
}
