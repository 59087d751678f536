//! `docs/formats.md` is made of the head comments of the modules that write and read what is stored or sent, so that
//! a layout is described once. `WRITE_DOCS=1 cargo test -p meridian --test formats` writes it anew.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Title, and the module whose head describes the format.
const FORMATS: &[(&str, &str)] = &[
    ("Entry envelope", "platform/bookie-api/src/envelope.rs"),
    ("Frames between ledger client and bookie", "platform/bookie-api/src/frame.rs"),
    ("Journal", "platform/bookie/src/journal/record.rs"),
    ("Entry log", "platform/bookie/src/entrylog/format.rs"),
    ("Bookie index", "platform/bookie/src/index.rs"),
    ("Cookie", "platform/bookie/src/cookie.rs"),
    ("Ledger record", "platform/ledger/src/record.rs"),
    ("Registration of a bookie", "platform/ledger/src/bookies/registration.rs"),
    ("Holdings of bookies", "platform/ledger/src/keys.rs"),
    ("Autorecovery", "platform/autorecovery/src/records.rs"),
    ("Ownership", "platform/ownership/src/records.rs"),
    ("Managed ledger records", "platform/managed-ledger/src/records.rs"),
    ("Cursor state", "platform/managed-ledger/src/cursor/codec.rs"),
    ("Acknowledgements between regions", "replication/cursors/src/exact/wire.rs"),
    ("Acknowledgements between regions, stored", "replication/cursors/src/exact/stored.rs"),
    ("Markers of replicated subscriptions", "replication/cursors/src/snapshot/marker.rs"),
    ("Messages on their way to another region", "platform/wire/src/replicate.rs"),
    ("Deduplication snapshot", "platform/topic/src/dedup/snapshot.rs"),
    ("Marks of origins", "platform/topic/src/origins/snapshot.rs"),
    ("Metadata in RocksDB", "platform/metadata/src/rocks/format.rs"),
    ("Metadata in TiKV", "platform/metadata-tikv/src/format.rs"),
    ("Log of changes of metadata in TiKV", "platform/metadata-tikv/src/log.rs"),
    ("Identity of a cluster", "platform/meridian/src/cluster/identity.rs"),
    ("Policies", "tenancy/registry/src/record.rs"),
    ("Stamps", "regions/topology/src/stamp.rs"),
    ("What regions share", "regions/topology/src/object.rs"),
    ("Schemas", "platform/broker/src/schema/record.rs"),
    ("Audit records", "tenancy/audit/src/record.rs"),
    ("Quotas, leases and usage", "tenancy/quotas/src/record.rs"),
    ("Questions between brokers of a region", "platform/broker/src/colleagues.rs"),
    ("Live settings", "platform/broker/src/live.rs"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    let mut page = String::from(
        "# Formats\n\nWhatever is stored or sent carries a version; a version that is not known is refused, never guessed. Each format has\n\
         golden bytes in the tests beside its module. This page is made of the modules' head comments; a test keeps it equal.\n",
    );
    for (title, file) in FORMATS {
        let source = fs::read_to_string(root().join(file)).expect("the module is there");
        let head = source.lines().map_while(|line| line.strip_prefix("//!"));
        let _ = write!(page, "\n## {title}\n\n`{file}`\n\n");
        for line in head {
            let _ = writeln!(page, "{}", line.strip_prefix(' ').unwrap_or(line));
        }
    }
    page
}

#[test]
fn the_page_is_up_to_date() {
    let path = root().join("docs/formats.md");
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(&path, page()).expect("the page can be written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page(), "docs/formats.md differs from the head comments: run with WRITE_DOCS=1");
}
