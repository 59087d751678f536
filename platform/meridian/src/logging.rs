//! Structured logs on standard error.
//!
//! `MERIDIAN_LOG` sets the filter in tracing's syntax (`info`, `meridian_broker=debug`, …); `logFormat` the form. The
//! client of the metadata store is silent unless the filter names it: it repeats itself many times a second while the
//! store is away, which is said once elsewhere.
//! Failure: a line that can't be written (a full disk, a closed pipe) is lost; nothing else happens. The default of the
//! library would report it on standard error, and a thread that can't do that panics.

use meridian_settings::{Key, Settings};
use tracing_subscriber::EnvFilter;

const DEFAULT_FILTER: &str = "info,tikv_client=off";

/// Starts logging for the process.
pub fn start(settings: &Settings) {
    let filter = EnvFilter::try_from_env("MERIDIAN_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    if settings.text(Key::LogFormat) == "json" {
        builder.json().init();
    } else {
        builder.with_ansi(false).init();
    }
}
