//! Prints the table: for the terminal, and as the reference page.

use crate::kind::Range;
use crate::table::{Setting, TABLE};
use std::fmt::Write;

/// One line per key, for a terminal; a value that was set is shown behind its default.
pub fn as_text() -> String {
    let mut out = String::new();
    for setting in TABLE {
        let default = if setting.default.is_empty() { "(empty)" } else { setting.default };
        let _ = writeln!(out, "{} = {default}\n    {} [{}]", setting.name, setting.effect, facts(setting));
    }
    out
}

/// The reference page `docs/reference/settings.md`.
pub fn as_markdown() -> String {
    let mut out = String::from(
        "# Settings\n\nPrinted from the table in `platform/settings`; a test keeps this page equal to it.\n\n\
         Settings are read from a properties file (`--config FILE`) and from `--set key=value`; the last one wins. Keys have\n\
         Pulsar's names wherever Pulsar has the setting. A Pulsar key without meaning here is accepted with a notice, an\n\
         unknown key gives a warning with the nearest name, a bad value ends the start. A key marked *live* can also be changed\n\
         while the broker runs, with `pulsar-admin brokers update-dynamic-config`.\n\n\
         | key | kind | default | origin | what it does |\n|---|---|---|---|---|\n",
    );
    for setting in TABLE {
        let default = if setting.default.is_empty() { String::new() } else { format!("`{}`", setting.default) };
        let origin = match (setting.pulsar, setting.reloadable) {
            (true, false) => "Pulsar",
            (true, true) => "Pulsar, live",
            (false, false) => "own",
            (false, true) => "own, live",
        };
        let _ =
            writeln!(out, "| `{}` | {} | {default} | {origin} | {} |", setting.name, shape(setting), setting.effect);
    }
    out
}

/// The kind, with its range where that is not all from 0.
fn shape(setting: &Setting) -> String {
    match setting.range == Range::of(setting.kind) {
        true => setting.kind.name(),
        false => format!("{},{}", setting.kind.name(), setting.range.told()),
    }
}

fn facts(setting: &Setting) -> String {
    format!("{}; {}", shape(setting), if setting.pulsar { "Pulsar's" } else { "own" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/settings.md");
        if std::env::var_os("WRITE_DOCS").is_some() {
            std::fs::write(path, as_markdown()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == as_markdown(),
            "docs/reference/settings.md: write it anew with `meridian settings --markdown` (or WRITE_DOCS=1)"
        );
    }

    #[test]
    fn every_key_is_printed() {
        let text = as_text();
        for setting in TABLE {
            assert!(text.contains(&format!("{} = ", setting.name)), "{}", setting.name);
        }
    }
}
