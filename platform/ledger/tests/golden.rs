//! Golden scripts: events in, effects out. The scripts in `tests/golden/` are the protocol's documentation; set
//! `GOLDEN_UPDATE=1` to write what the machines answer now, and read the difference.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use meridian_bookie_api::{AddEntry, AddResult, BookieError, EntryBytes, FenceState, ReadEntry};
use meridian_ledger::layout::Layout;
use meridian_ledger::record::Stored;
use meridian_ledger::recovery::machine::{RecoveryEffect, RecoveryMachine, RecoverySettings};
use meridian_ledger::replicate::machine::{ReplicateEffect, ReplicateMachine};
use meridian_ledger::replicate::{ReplicateSettings, Work};
use meridian_ledger::writer::machine::{Pending, WriterMachine};
use meridian_ledger::writer::words::{Change, ChangeRefusal, Mode, WriterEffect, WriterTimes};
use meridian_ledger::{LedgerError, LedgerOptions, LedgerRecord, LedgerState};
use meridian_metadata::{MetadataError, Version};
use meridian_types::{BookieId, EntryId, LedgerId};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::Path;

const LEDGER: LedgerId = LedgerId(7);
const TIMES: WriterTimes = WriterTimes {
    add_timeout_ms: 1_000,
    give_up_ms: 5_000,
    retry_ms: 200,
    busy_retry_ms: 20,
    lac_idle_ms: 100,
    window_keep_bytes: 1_000,
    change_delay_ms: 0,
};

fn ids(words: &[&str]) -> Vec<BookieId> {
    words.iter().map(|w| BookieId::new(*w)).collect()
}

fn names(bookies: &[BookieId]) -> String {
    bookies.iter().map(BookieId::as_str).collect::<Vec<_>>().join(" ")
}

fn numbers(entries: &[AddEntry]) -> String {
    entries.iter().map(|e| e.entry_id.to_string()).collect::<Vec<_>>().join(" ")
}

fn number(word: &str) -> i64 {
    word.parse().unwrap()
}

fn error(word: &str) -> BookieError {
    match word {
        "io" => BookieError::Io("disk".to_owned()),
        "busy" => BookieError::Busy("queue".to_owned()),
        "fenced" => BookieError::Fenced,
        "read-only" => BookieError::ReadOnly("space".to_owned()),
        "corrupt" => BookieError::Corrupt("digest".to_owned()),
        "none" => BookieError::NoSuchEntry,
        "timeout" => BookieError::Timeout(1_000),
        "unavailable" => BookieError::Unavailable("down".to_owned()),
        other => panic!("no error is called {other}"),
    }
}

fn results(words: &[&str], result: Result<(), BookieError>) -> Vec<AddResult> {
    let answer = |w: &&str| AddResult { ledger_id: LEDGER, entry_id: EntryId(number(w)), result: result.clone() };
    words.iter().map(answer).collect()
}

fn change(change: &Change) -> String {
    let failed: Vec<_> = change.failed.iter().map(|slot| change.ensemble[slot].clone()).collect();
    format!("replace {} of {} from entry {}", names(&failed), names(&change.ensemble), change.first)
}

fn layout(words: &[&str]) -> Layout {
    Layout::new(number(words[0]) as u32, number(words[1]) as u32, number(words[2]) as u32).unwrap()
}

/// Runs one line against a machine and answers the effects as lines.
trait Script {
    fn event(&mut self, now_ms: u64, words: &[&str]) -> Vec<String>;
}

struct WriterScript(Option<WriterMachine>);

impl Script for WriterScript {
    fn event(&mut self, now_ms: u64, words: &[&str]) -> Vec<String> {
        if matches!(words[0], "ledger" | "delayed") {
            let ensemble = ids(&words[4..]);
            let layout = layout(&words[1..4]);
            let times = WriterTimes { change_delay_ms: if words[0] == "delayed" { 700 } else { 0 }, ..TIMES };
            self.0 = Some(WriterMachine::new(LEDGER, layout, Mode::Append, times, &ensemble, EntryId::NONE));
            return Vec::new();
        }
        let machine = self.0.as_mut().expect("a script begins with `ledger`");
        match words[0] {
            "append" => {
                let entry = |w: &&str| Pending::new(EntryBytes::plain(Bytes::copy_from_slice(w.as_bytes())), 0);
                if let Err(error) = machine.append(now_ms, words[1..].iter().map(entry).collect()) {
                    return vec![format!("refused: {error}")];
                }
            }
            "ok" => machine.added(now_ms, &BookieId::new(words[1]), results(&words[2..], Ok(()))),
            "err" => machine.added(now_ms, &BookieId::new(words[1]), results(&words[3..], Err(error(words[2])))),
            "changed" => machine.ensemble_changed(now_ms, &ids(&words[1..])),
            "refused" => machine.change_refused(
                now_ms,
                match words[1] {
                    "none" => ChangeRefusal::NoReplacement { available: number(words[2]) as u32 },
                    "unknown" => ChangeRefusal::Unknown("late".to_owned()),
                    _ => ChangeRefusal::Lost(LedgerError::Fenced(LEDGER)),
                },
            ),
            "tick" => machine.tick(now_ms),
            "close" => machine.close(),
            other => panic!("no event is called {other}"),
        }
        let effects = machine.take_effects();
        effects.iter().map(writer_effect).collect()
    }
}

fn writer_effect(effect: &WriterEffect) -> String {
    match effect {
        WriterEffect::Send { bookie, entries, .. } => {
            format!("send to {bookie}: {} (lac {})", numbers(entries), entries[0].last_add_confirmed)
        }
        WriterEffect::TellLac { bookies, last_add_confirmed } => {
            format!("tell {}: lac {last_add_confirmed}", names(bookies))
        }
        WriterEffect::Replace(wanted) => change(wanted),
        WriterEffect::Confirmed(entry) => format!("confirmed up to {entry}"),
        WriterEffect::Ended(error) => format!("ended: {error}"),
        WriterEffect::Drained => "drained".to_owned(),
    }
}

struct RecoveryScript {
    machine: RecoveryMachine,
    /// Members by name: index and round of the last question.
    asked: HashMap<String, (usize, u64)>,
}

impl RecoveryScript {
    fn new() -> Self {
        let settings =
            RecoverySettings { times: TIMES, retry_ms: 200, deadline_ms: 10_000, batch_entries: 2, batch_bytes: 1_000 };
        Self { machine: RecoveryMachine::new(LEDGER, settings), asked: HashMap::new() }
    }

    fn effect(&mut self, effect: RecoveryEffect) -> String {
        match effect {
            RecoveryEffect::Load => "load".to_owned(),
            RecoveryEffect::Store { record, version } => format!("store at {}: {}", version.0, describe(&record)),
            RecoveryEffect::Fence { round, slot, bookie } => {
                self.asked.insert(bookie.to_string(), (slot, round));
                format!("fence {bookie}")
            }
            RecoveryEffect::Read { round, slot, bookie, request } => {
                assert!(request.fence && !request.gaps_allowed, "recovery reads fence and leave nothing out");
                self.asked.insert(bookie.to_string(), (slot, round));
                format!("read {bookie}: {} entries from {}", request.max_entries, request.first_entry_id)
            }
            RecoveryEffect::Send { bookie, entries } => {
                assert!(entries.iter().all(|e| e.recovery));
                format!("rewrite to {bookie}: {} (lac {})", numbers(&entries), entries[0].last_add_confirmed)
            }
            RecoveryEffect::Replace(wanted) => change(&wanted),
            RecoveryEffect::Measure { up_to, .. } => format!("measure up to {up_to}"),
            RecoveryEffect::Done(Ok(record)) => format!("done: {}", describe(&record)),
            RecoveryEffect::Done(Err(error)) => format!("failed: {error}"),
        }
    }
}

fn describe(record: &LedgerRecord) -> String {
    let mut text = match record.state {
        LedgerState::Open => "open".to_owned(),
        LedgerState::InRecovery => "in-recovery".to_owned(),
        LedgerState::Closed => format!("closed at {} with {} bytes", record.last_entry, record.length_bytes),
    };
    for ensemble in &record.ensembles {
        let _ = write!(text, ", from {} {}", ensemble.first, names(&ensemble.bookies));
    }
    text
}

/// `open 3 3 2 0=a,b,c 5=d,b,c`, or `closed-at-4 …`.
fn parse_record(words: &[&str]) -> LedgerRecord {
    let layout = layout(&words[1..4]);
    let options = LedgerOptions { ensemble_size: 1, write_quorum: 1, ack_quorum: 1, properties: BTreeMap::new() };
    let ensembles: Vec<_> = words[4..].iter().map(|w| w.split_once('=').unwrap()).collect();
    let members = |text: &str| ids(&text.split(',').collect::<Vec<_>>());
    let mut record = LedgerRecord::new(layout, options, members(ensembles[0].1), 0);
    for (first, bookies) in &ensembles[1..] {
        record.change_ensemble(EntryId(number(first)), members(bookies));
    }
    match words[0] {
        "open" => {}
        "in-recovery" => record.state = LedgerState::InRecovery,
        closed => record.close(EntryId(number(closed.strip_prefix("closed-at-").unwrap())), 0, true),
    }
    record
}

impl Script for RecoveryScript {
    fn event(&mut self, now_ms: u64, words: &[&str]) -> Vec<String> {
        let unavailable = || MetadataError::Unavailable("down".to_owned());
        let asked = |name: &str| self.asked[name];
        let machine = &mut self.machine;
        match words[0] {
            "begin" => {}
            "loaded" if words[1] == "error" => machine.loaded(now_ms, Err(unavailable().into())),
            "loaded" => machine.loaded(now_ms, Ok((parse_record(&words[2..]), Version(number(words[1]) as u64)))),
            "stored" => machine.stored(
                now_ms,
                match words[1] {
                    "changed" => Stored::Changed,
                    "unknown" => Stored::Unknown(unavailable()),
                    version => Stored::Done(Version(number(version) as u64)),
                },
            ),
            "fenced" => {
                let (slot, round) = asked(words[1]);
                let state = |lac: i64| FenceState { last_add_confirmed: EntryId(lac), last_entry: EntryId(lac) };
                let result = words[2].parse().map(state).map_err(|_| error(words[2]));
                machine.fenced(now_ms, round, slot, result);
            }
            "read" => {
                let (slot, round) = asked(words[1]);
                let entry = |w: &&str| ReadEntry {
                    entry_id: EntryId(number(w)),
                    last_add_confirmed: EntryId::NONE,
                    digest: 0,
                    payload: Bytes::from_static(b"0123456789"),
                };
                let found = words[2].parse::<i64>().is_ok();
                let result = if found { Ok(words[2..].iter().map(entry).collect()) } else { Err(error(words[2])) };
                machine.answered(now_ms, round, slot, result);
            }
            "ok" => machine.added(now_ms, &BookieId::new(words[1]), results(&words[2..], Ok(()))),
            "err" => machine.added(now_ms, &BookieId::new(words[1]), results(&words[3..], Err(error(words[2])))),
            "replaced" if words[1] == "none" => machine.replaced(now_ms, Err(number(words[2]) as u32)),
            "replaced" => machine.replaced(now_ms, Ok(ids(&words[1..]))),
            "measured" => machine.measured(number(words[1]) as u64, true),
            "tick" => machine.tick(now_ms),
            other => panic!("no event is called {other}"),
        }
        let effects = self.machine.take_effects();
        effects.into_iter().map(|effect| self.effect(effect)).collect()
    }
}

struct ReplicateScript {
    machine: Option<ReplicateMachine>,
    /// Runs by member, as they were asked last.
    asked: HashMap<String, (usize, u64)>,
}

impl ReplicateScript {
    fn effect(&mut self, effect: ReplicateEffect) -> String {
        match effect {
            ReplicateEffect::Load => "load".to_owned(),
            ReplicateEffect::Choose(wanted) => change(&wanted),
            ReplicateEffect::Mend { ensemble, .. } => format!("mend the placement of {}", names(&ensemble)),
            ReplicateEffect::Read { run, slot, bookie, request } => {
                assert!(!request.fence, "re-replication fences nothing");
                self.asked.insert(bookie.to_string(), (slot, run));
                let gaps = if request.gaps_allowed { " and what lies behind gaps" } else { "" };
                format!("read {bookie}: {} entries from {}{gaps}", request.max_entries, request.first_entry_id)
            }
            ReplicateEffect::Send { bookie, entries } => {
                assert!(entries.iter().all(|e| e.recovery));
                format!("copy to {bookie}: {} (lac {})", numbers(&entries), entries[0].last_add_confirmed)
            }
            ReplicateEffect::Store { record, version, .. } => {
                format!("store at {}: {}", version.0, describe(&record))
            }
            ReplicateEffect::Done(Ok(done)) => format!("done: {done:?}"),
            ReplicateEffect::Done(Err(error)) => format!("failed: {error}"),
        }
    }
}

impl Script for ReplicateScript {
    /// `begin leaving a refill b` or `begin mend`, then answers.
    fn event(&mut self, now_ms: u64, words: &[&str]) -> Vec<String> {
        if words[0] == "begin" {
            let settings = ReplicateSettings {
                batch_entries: 2,
                batch_bytes: 1_000,
                runs_in_flight: 2,
                retry_ms: 200,
                patience_ms: 5_000,
                salt: 0,
            };
            let of = |kind: &str| words.windows(2).filter(|w| w[0] == kind).map(|w| BookieId::new(w[1])).collect();
            let work = Work { leaving: of("leaving"), refill: of("refill"), mend: words.contains(&"mend") };
            self.machine = Some(ReplicateMachine::new(LEDGER, work, settings, now_ms));
        }
        let machine = self.machine.as_mut().expect("a script begins with `begin`");
        match words[0] {
            "begin" => {}
            "loaded" => machine.loaded(now_ms, Ok((parse_record(&words[2..]), Version(number(words[1]) as u64)))),
            "stored" => machine.stored(
                now_ms,
                match words[1] {
                    "changed" => Stored::Changed,
                    "unknown" => Stored::Unknown(MetadataError::Unavailable("down".to_owned())),
                    version => Stored::Done(Version(number(version) as u64)),
                },
            ),
            "chosen" if words[1] == "none" => machine.chosen(now_ms, Err(number(words[2]) as u32)),
            "chosen" => machine.chosen(now_ms, Ok(ids(&words[1..]))),
            "members" if words[1] == "none" => machine.mendable(now_ms, None),
            "members" => machine.mendable(now_ms, Some(ids(&words[1..]))),
            "read" => {
                let (slot, run) = self.asked[words[1]];
                let payload = Bytes::from_static(b"0123456789");
                // `damaged-4` is entry 4 with a byte that is not as it was written.
                let entry = |w: &&str| {
                    let (entry, damage) = w.strip_prefix("damaged-").map_or((*w, 0), |entry| (entry, 1));
                    let entry_id = EntryId(number(entry));
                    let digest = EntryBytes::plain(payload.clone()).digest(LEDGER, entry_id) ^ damage;
                    let last_add_confirmed = EntryId(entry_id.0 - 1);
                    ReadEntry { entry_id, last_add_confirmed, digest, payload: payload.clone() }
                };
                let failed = !words[2].chars().any(|c| c.is_ascii_digit());
                let result = if failed { Err(error(words[2])) } else { Ok(words[2..].iter().map(entry).collect()) };
                machine.answered(now_ms, run, slot, result);
            }
            "ok" => machine.added(now_ms, &BookieId::new(words[1]), results(&words[2..], Ok(()))),
            "err" => machine.added(now_ms, &BookieId::new(words[1]), results(&words[3..], Err(error(words[2])))),
            "tick" => machine.tick(now_ms),
            other => panic!("no event is called {other}"),
        }
        let effects = machine.take_effects();
        effects.into_iter().map(|effect| self.effect(effect)).collect()
    }
}

/// Plays a script: lines that begin with two spaces are the effects of the line before them.
fn play(text: &str, mut script: impl Script) -> String {
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with("  ")) {
        let _ = writeln!(out, "{line}");
        let words: Vec<_> = line.split_whitespace().collect();
        if words.is_empty() || words[0] == "#" {
            continue;
        }
        let (now_ms, words) = match words[0].strip_prefix('@') {
            Some(time) => (time.parse().unwrap(), &words[1..]),
            None => (0, &words[..]),
        };
        for effect in script.event(now_ms, words) {
            let _ = writeln!(out, "  {effect}");
        }
    }
    out
}

fn scripts(prefix: &str, play: impl Fn(&str) -> String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut played = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)) {
            continue;
        }
        let wanted = std::fs::read_to_string(&path).unwrap();
        let trace = play(&wanted);
        if std::env::var_os("GOLDEN_UPDATE").is_some() {
            std::fs::write(&path, &trace).unwrap();
        } else {
            assert_eq!(trace, wanted, "{}", path.display());
        }
        played += 1;
    }
    assert!(played > 0, "no script begins with {prefix}");
}

#[test]
fn writer_scripts() {
    scripts("writer_", |text| play(text, WriterScript(None)));
}

#[test]
fn recovery_scripts() {
    scripts("recovery_", |text| play(text, RecoveryScript::new()));
}

#[test]
fn replicate_scripts() {
    scripts("replicate_", |text| play(text, ReplicateScript { machine: None, asked: HashMap::new() }));
}
