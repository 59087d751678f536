//! How busy this machine and process are, as the kernel says.
//!
//! Role: CPU time of the process against the processors that it may use, resident memory against the smallest limit that
//! holds. Bandwidth is counted by the broker and compared with a number that an operator gives.
//! Failure: what can't be read counts as idle.
//! Must never know: ownership.

use std::fs;
use std::time::Instant;

/// Clock ticks per second in `/proc`: fixed in the kernel's interface.
const TICKS_PER_S: u64 = 100;

/// Takes samples.
pub struct Machine {
    last: Option<(Instant, u64)>,
    processors: u64,
}

/// One sample, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// CPU since the last sample.
    pub cpu_permille: u32,
    /// Memory now.
    pub memory_permille: u32,
}

impl Default for Machine {
    fn default() -> Self {
        Self { last: None, processors: std::thread::available_parallelism().map_or(1, |count| count.get() as u64) }
    }
}

impl Machine {
    /// CPU since the last call, memory now.
    pub fn sample(&mut self) -> Usage {
        let (now, used_ms) = (Instant::now(), cpu_ms().unwrap_or(0));
        let cpu_permille = self.last.map_or(0, |(then, before_ms)| {
            let passed_ms = (now - then).as_millis().max(1) as u64 * self.processors;
            (used_ms.saturating_sub(before_ms) * 1000 / passed_ms).min(1000)
        });
        self.last = Some((now, used_ms));
        Usage { cpu_permille: cpu_permille as u32, memory_permille: memory_permille().unwrap_or(0) }
    }
}

fn cpu_ms() -> Option<u64> {
    parse_stat(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// User and system time; the name in brackets may hold anything.
fn parse_stat(text: &str) -> Option<u64> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks * 1000 / TICKS_PER_S)
}

fn field_kb(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line[name.len()..].split_ascii_whitespace().next()?.parse().ok()
}

fn memory_permille() -> Option<u32> {
    let used_kb = field_kb(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")?;
    let machine_kb = field_kb(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?;
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group_kb = group.and_then(|text| text.trim().parse::<u64>().ok()).map_or(u64::MAX, |bytes| bytes / 1024);
    Some((used_kb * 1000 / machine_kb.min(group_kb).max(1)).min(1000) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 100 1 1";
        assert_eq!(parse_stat(stat), Some(3_000));
        assert_eq!(parse_stat("nonsense"), None);
        assert_eq!(field_kb("VmPeak: 1 kB\nVmRSS:\t  42 kB\n", "VmRSS:"), Some(42));
        assert_eq!(field_kb("", "VmRSS:"), None);
    }

    #[test]
    fn a_process_uses_some_memory() {
        let mut machine = Machine::default();
        machine.sample();
        let usage = machine.sample();
        assert!(usage.cpu_permille <= 1000 && usage.memory_permille <= 1000);
    }
}
