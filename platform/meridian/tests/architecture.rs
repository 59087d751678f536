//! The crate table of `docs/architecture.md` and the manifests say the same, and no arrow points up.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

struct Row {
    folder: String,
    stands_on: BTreeSet<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn rows() -> Vec<Row> {
    let page = fs::read_to_string(root().join("docs/architecture.md")).expect("the page is there");
    let table = page.lines().filter(|line| line.starts_with("| `"));
    table
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let folder = cells[0].trim_matches('`').to_owned();
            let stands_on = cells[2].split(',').map(str::trim).filter(|name| *name != "–").map(str::to_owned).collect();
            Row { folder, stands_on }
        })
        .collect()
}

/// The project's crates in the `[dependencies]` part of a manifest, by short name.
fn dependencies(folder: &str) -> BTreeSet<String> {
    let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("the manifest is there");
    let part = manifest.split("[dependencies]").nth(1).unwrap_or_default();
    let part = part.split("\n[").next().unwrap_or_default();
    let names = part.lines().filter_map(|line| line.strip_prefix("meridian-"));
    names.filter_map(|line| line.split(['.', ' ', '=']).next()).map(str::to_owned).collect()
}

fn short(folder: &str) -> String {
    folder.rsplit('/').next().unwrap_or_default().to_owned()
}

#[test]
fn table_and_manifests_agree() {
    let rows = rows();
    let mut above = BTreeSet::new();
    for row in &rows {
        let real = dependencies(&row.folder);
        if row.stands_on.contains("everything") {
            assert!(real.is_subset(&above), "{}: {real:?} holds something that is not above it", row.folder);
        } else {
            assert_eq!(real, row.stands_on, "{}: manifest (left) and table (right) differ", row.folder);
            let up: Vec<_> = real.difference(&above).collect();
            assert!(up.is_empty(), "{} imports upwards: {up:?}", row.folder);
        }
        above.insert(short(&row.folder));
    }
}

#[test]
fn every_member_has_a_row() {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("the manifest is there");
    let members = workspace.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
    let members: BTreeSet<String> =
        members.lines().map(|line| line.trim().trim_matches([',', '"']).to_owned()).filter(|m| !m.is_empty()).collect();
    let listed: BTreeSet<String> = rows().into_iter().map(|row| row.folder).collect();
    assert_eq!(members, listed);
}
